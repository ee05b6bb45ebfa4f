"""A running server asked by its protocol: what is behind the cold tier, and appends."""
