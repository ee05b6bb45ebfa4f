"""Batches and records as bytes, checksums, compression."""
