"""PySpark jobs over both tiers: rows, sink, compaction, erasure, snapshot, table, dedup, verify."""
