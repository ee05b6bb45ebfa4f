"""A running server asked by its protocol: raw batches, offsets, appends in transactions."""
