"""Access of drivers and tasks to remote segments."""
