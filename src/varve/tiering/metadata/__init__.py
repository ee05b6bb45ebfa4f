"""Tier metadata kept in the topic __remote_log_metadata, as Kafka does by default."""
