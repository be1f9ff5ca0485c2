"""Answers of MySQL and MariaDB, from their packets to Arrow."""
