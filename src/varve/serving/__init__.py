"""What the process of any server needs: log output, stop signals, limits."""
