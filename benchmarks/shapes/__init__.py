"""Shapes: their log, their compaction, the engine with many of them, and the HTTP server."""
