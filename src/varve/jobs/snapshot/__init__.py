"""The state of a topic as Parquet, and where to read on."""
