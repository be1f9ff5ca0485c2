"""Changes found by asking a table again, where there is no log."""
