"""numba loops over the ids of records and the times at which they were kept; no I/O."""
