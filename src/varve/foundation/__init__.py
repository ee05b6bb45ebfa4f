"""Errors, clock, settings, supervised workers."""
