"""Shapes: filtered live views of keyed topics, with their tables, snapshots, logs and filters."""
