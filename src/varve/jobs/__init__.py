"""PySpark jobs over both tiers: a topic as rows, sink, compaction, erasure, snapshot, table, dedup, verification."""
