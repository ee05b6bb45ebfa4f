"""The cold tier: copy, read, first record, commits, hot work beside cold readers, memory."""
