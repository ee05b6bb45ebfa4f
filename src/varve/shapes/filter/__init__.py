"""Filters, columns and orders that a request may ask for, and which shapes a row concerns."""
