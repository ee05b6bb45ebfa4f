"""A test kit for other projects: a store in the process with a virtual clock and planned crashes."""
