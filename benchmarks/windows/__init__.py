"""Window stores: memory over live segments, dropping one, restoring from a changelog."""
