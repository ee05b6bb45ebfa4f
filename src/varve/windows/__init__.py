"""Time-segmented window store, deduplicating processor."""
