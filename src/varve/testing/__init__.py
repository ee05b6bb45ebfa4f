"""A test kit for other projects: a store in the process, a virtual clock, planned crashes."""
