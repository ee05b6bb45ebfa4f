"""RocksDB databases in segments of time: options, batches, scans, errors, one memory budget."""
