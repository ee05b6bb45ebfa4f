"""Topics, settings and directories as administrators see them."""
