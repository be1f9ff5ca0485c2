"""Rows as messages: keys, values and headers, a batch at a time. Not here: brokers (`destinations/kafka.py`)."""
