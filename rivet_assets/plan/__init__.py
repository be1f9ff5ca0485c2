"""`rivet plan`: what a run would read, in which order, as facts that can be signed."""
