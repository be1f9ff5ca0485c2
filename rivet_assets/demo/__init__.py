"""`rivet demo`: a shop to export from, and the first runs of it."""
