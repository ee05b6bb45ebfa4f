"""Compaction of the cold tier."""
