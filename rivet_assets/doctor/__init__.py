"""`rivet doctor`: what is ready on this machine, at the source and at the destination."""
