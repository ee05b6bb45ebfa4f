"""A topic without its duplicates: the rules, what is remembered, and the processor."""
