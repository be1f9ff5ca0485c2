"""The binary log of MySQL and MariaDB, from its packets to changes."""
