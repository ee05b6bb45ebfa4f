"""Segment, indexes, append, read, recovery, producer state, epochs, log directories."""
