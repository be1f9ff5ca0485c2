"""Changes of generated tables."""
