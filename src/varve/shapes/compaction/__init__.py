"""Compaction of shape logs: keeps what is needed of each key, while others read the log."""
