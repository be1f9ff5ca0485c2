"""Change capture: reading a database's log, one engine a file family (`postgres*.py`, `mysql*.py`, …), one protocol."""
