"""One module for each API: its request and its response."""
