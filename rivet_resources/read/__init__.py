"""One extract, from its chunks to staged parts: tasks, throttle, governor."""
