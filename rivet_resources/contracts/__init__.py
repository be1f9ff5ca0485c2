"""What rooms agree on: protocols and plain values."""
