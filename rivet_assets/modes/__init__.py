"""One file per `mode:`, each a YAML block and how it turns a window into an Extract. `protocol.py` is what they share."""
