"""One file per place where parts go: its YAML block, staging, publishing, the fenced swap.

`contracts/destination.py` is what they share.
"""
