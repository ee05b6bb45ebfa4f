"""The public face: open a directory, its topics, append and read."""
