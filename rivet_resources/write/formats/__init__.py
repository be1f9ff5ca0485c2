"""One file per file format: its YAML block and its part writer. `contracts/format.py` is what they share."""
