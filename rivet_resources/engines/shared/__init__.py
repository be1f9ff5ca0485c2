"""What several engines do alike; no engine imports another one."""
