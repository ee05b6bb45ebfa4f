"""numba loops over byte buffers: scan batches, parse records, hash keys, build, checksum.

No I/O, no objects.
"""
