"""Kernels: numba-compiled loops over byte buffers that scan, parse, build, filter, hash and check
record batches. They do no I/O.
"""
