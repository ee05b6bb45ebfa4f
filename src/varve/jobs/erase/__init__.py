"""Erasure from everything that can be reached, and its receipt."""
