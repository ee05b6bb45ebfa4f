"""Transactions over partitions and offsets."""
