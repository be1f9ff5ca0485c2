"""Positions in change logs: how they are kept and compared."""
