"""What a feed has counted since it was made.

Threads    one thread counts; any may look.
"""

from dataclasses import dataclass


@dataclass(slots=True)
class FeedCounts:
    """Records by what they came to."""

    records: int = 0
    changes: int = 0
    unchanged: int = 0
    """Rows that were so already, and deletions of what was not there."""
    nothing: int = 0
    """Records that say nothing about a row."""
    skipped: int = 0
    """Records without a key, or of a form that the decoder does not know."""
    uncertain: int = 0
    """Changes whose previous row may be another one than shapes hold."""
    unfinished: int = 0
    """Source transactions that were given before their end was known."""
    resets: int = 0
