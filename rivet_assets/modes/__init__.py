"""One file per `mode:`: a YAML block, and how it turns a window into an Extract. `protocol.py` is what they share."""
