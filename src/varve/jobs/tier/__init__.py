"""How a task comes to the cold tier."""
