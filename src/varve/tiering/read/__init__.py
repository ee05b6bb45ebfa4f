"""Reads of what is in object storage: caches, read-ahead, and the remote part of a log."""
