"""numba loops over the rows, messages and log entries of shapes; no I/O."""
