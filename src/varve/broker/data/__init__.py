"""Requests for records: Produce, Fetch, offsets and metadata."""
