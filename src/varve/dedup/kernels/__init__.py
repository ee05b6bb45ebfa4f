"""numba kernels over record ids and the times at which they were kept; no I/O."""
