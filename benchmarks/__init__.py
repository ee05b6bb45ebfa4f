"""Measured, never asserted: varve beside a real baseline, in one run on one disk."""
