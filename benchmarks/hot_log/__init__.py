"""The hot log: append, build, read, parse, recover, open."""
