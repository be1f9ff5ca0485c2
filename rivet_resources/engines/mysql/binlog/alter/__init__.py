"""What an ALTER TABLE that defines columns anew makes of old values. Not here: reading its words (`../ddl.py`)."""
