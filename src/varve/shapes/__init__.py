"""Shapes: filtered views of keyed topics, their tables, snapshots, logs, compaction and
recovery.
"""
