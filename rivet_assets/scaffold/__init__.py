"""`rivet init` and `rivet discover`: a configuration proposed from a catalog."""
