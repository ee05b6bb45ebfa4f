"""PySpark jobs over the cold tier: a topic as rows, compaction, verification."""
