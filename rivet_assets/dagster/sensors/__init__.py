"""Sensors: what starts drains, asks again, keeps partitions and tells of failures."""
