"""Key indexes, compaction, retention, and the record of every removal."""
