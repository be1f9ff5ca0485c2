"""What is concluded of a window before it is published: quality, contract, references, profiles."""
