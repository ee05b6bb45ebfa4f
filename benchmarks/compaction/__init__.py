"""Compaction: against the offset map, against Kafka, over what is clean already, beside appends."""
