"""Topics as tables: records decoded to rows, their latest state, and changes in one order."""
