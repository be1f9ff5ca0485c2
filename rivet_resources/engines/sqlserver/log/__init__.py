"""The change tables of SQL Server."""
