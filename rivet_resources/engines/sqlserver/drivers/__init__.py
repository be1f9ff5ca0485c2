"""The drivers that reach SQL Server, a file each, and their connection strings. Not here: who uses one (driver.py)."""
