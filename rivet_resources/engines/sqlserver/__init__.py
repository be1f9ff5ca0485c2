"""SQL Server as a source."""
