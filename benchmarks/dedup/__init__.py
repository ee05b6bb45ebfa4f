"""The windowed deduplication against Spark's own operator."""
