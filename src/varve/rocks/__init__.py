"""RocksDB databases, one per time segment: options, batches, scans, errors, one memory budget."""
