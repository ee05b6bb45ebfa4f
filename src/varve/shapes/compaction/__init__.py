"""Rewrites the old part of a shape's log so that a row updated often stands there once."""
