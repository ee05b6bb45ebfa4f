"""Compaction of a shape's log: what stays of each key, written anew while others read it."""
