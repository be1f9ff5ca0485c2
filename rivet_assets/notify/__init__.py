"""Messages about runs: what they say, and to whom they go."""
