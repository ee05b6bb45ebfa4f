"""Rows into a topic, exactly once."""
