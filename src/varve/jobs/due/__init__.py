"""Jobs that topics want done at intervals."""
