"""One module per language of schemas: an export's schema in it, and which changes break readers."""
