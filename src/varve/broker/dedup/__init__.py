"""Topics that drop duplicates when they are produced to (`varve.dedup.by`)."""
