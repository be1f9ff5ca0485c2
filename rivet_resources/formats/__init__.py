"""One file per file format: its YAML block and its part writer. `protocol.py` is what they share."""
