"""One file per database engine, alike in order: settings, session, reader, facts. `protocol.py` is what they share."""
