"""A stream without its duplicates within a window."""
