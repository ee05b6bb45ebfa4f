"""Arithmetic of producer sequences, which wrap from INT_MAX to 0."""

INT_MAX = 2**31 - 1


def increment_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records later."""
    if sequence > INT_MAX - count:
        return count - (INT_MAX - sequence) - 1
    return sequence + count


def decrement_sequence(sequence: int, count: int) -> int:
    """The sequence `count` records earlier."""
    if sequence < count:
        return INT_MAX - (count - sequence) + 1
    return sequence - count
