"""Topics that take no duplicates: what stands between Produce and their logs."""
