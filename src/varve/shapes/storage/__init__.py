"""The files of one shape: log, chunk index, snapshot, metadata; writer, readers, recovery."""
