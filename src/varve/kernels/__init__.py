"""numba loops over byte buffers: scan, parse, build, filter, hash, checksum. No I/O."""
