"""Whether a run may begin: whose state and which destination and database it meets."""
