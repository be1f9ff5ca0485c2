"""`rivet check`: facts of the source become a verdict before anything is read."""
