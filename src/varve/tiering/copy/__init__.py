"""Copies closed segments to object storage, oldest first."""
