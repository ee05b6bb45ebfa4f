"""Whether a cold segment belongs to the history of a log, by its leader epochs.

Invariant  a history is (leader epoch, first offset) pairs in ascending order, as in
           `leader-epoch-checkpoint`.
"""

from collections.abc import Sequence

from varve.tiering.cold_segment import ColdSegment

Epochs = Sequence[tuple[int, int]]


def restrict_epochs(
    history: Epochs, *, base_offset: int, end_offset: int
) -> tuple[tuple[int, int], ...]:
    """The part of a history that the offsets of a segment lie in; `end_offset` is inclusive.

    The epoch that was on at the base offset begins there.
    """
    within = [(epoch, start) for epoch, start in history if start <= end_offset]
    before = [epoch for epoch, start in within if start <= base_offset]
    later = tuple((epoch, start) for epoch, start in within if start > base_offset)
    return ((before[-1], base_offset), *later) if before else later


def is_in_lineage(segment: ColdSegment, history: Epochs, *, log_end_offset: int) -> bool:
    """Whether the log of this history had the segment's records, as Kafka decides it (KIP-405).

    Epochs below the history's first are passed over: that part of it is forgotten.
    """
    own = dict(_with_data(segment.epochs))
    log = dict(_with_data(history))
    if not own or not log or segment.end_offset >= log_end_offset:
        return False
    log_epochs = list(log)
    last = list(own)[-1]
    known = [epoch for epoch in own if epoch >= log_epochs[0]]
    if not log_epochs[0] <= last <= log_epochs[-1] or not all(epoch in log for epoch in known):
        return False
    first = known[0]
    # The log may begin within its first epoch, so that epoch's start says nothing.
    if first != log_epochs[0] and own[first] < log[first]:
        return False
    following = _find_next(log, last)
    if following is not None and segment.end_offset > following[1] - 1:
        return False
    return all(_find_next(own, epoch) == _find_next(log, epoch) for epoch in known[:-1])


def _with_data(epochs: Epochs) -> list[tuple[int, int]]:
    """Without the epochs in which nothing was written: the next begins at the same offset."""
    return [
        (epoch, start)
        for place, (epoch, start) in enumerate(epochs)
        if place + 1 == len(epochs) or epochs[place + 1][1] != start
    ]


def _find_next(epochs: dict[int, int], epoch: int) -> tuple[int, int] | None:
    return next(((later, start) for later, start in epochs.items() if later > epoch), None)
