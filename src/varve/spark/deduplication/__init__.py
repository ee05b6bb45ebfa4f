"""The deduplication job on Spark Structured Streaming."""
