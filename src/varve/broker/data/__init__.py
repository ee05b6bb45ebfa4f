"""Records in and out: produce, fetch, offsets, and what clients must know to ask for them."""
