"""Jobs over both tiers, without pyspark: rows, sink, compaction, erasure, snapshot, table, dedup,
verify.
"""
