"""The HTTP server, and the shape API on it."""
