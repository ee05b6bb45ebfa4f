"""Retention, the key index, plan, local compaction, the swap, who is due next."""
