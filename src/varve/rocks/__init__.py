"""RocksDB databases: options, batches, scans, time segments, errors, one memory budget."""
