"""Errors, clock, settings, metrics, workers, backoff, units."""
