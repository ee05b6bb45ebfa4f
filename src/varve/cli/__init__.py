"""One module per command; the only place that builds the whole from settings."""
