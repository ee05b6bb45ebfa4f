"""Compaction of remote segments."""
