"""Snapshots: the latest record of each key of a topic, as Parquet files with resume offsets."""
