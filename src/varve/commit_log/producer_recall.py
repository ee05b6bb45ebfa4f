"""Brings back what a snapshot does not tell: the batches in front of each producer's last one.

A snapshot remembers one batch per producer, as Kafka's format has it, and a log remembers five: so
many may be on their way when a process ends, and a producer repeats all of them to the next one.

Invariant  only batches that stand in the log are brought back, and only behind one and the same
           last batch; what a snapshot says of epochs and transactions stays.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from varve.commit_log.names import LOG
from varve.commit_log.producer_entry import CACHED_BATCH_COUNT
from varve.commit_log.producer_replay import replay_batches
from varve.commit_log.producer_state import ProducerEntry, ProducerStates
from varve.commit_log.segment_reader import BatchWalk, ReadableSegment, find_start_position
from varve.foundation.errors import Corrupt

RECALLED_BYTES: Final = 1 << 20
"""How much of a segment's end is looked at; what is on its way is the newest there is."""


def recall_batches(segments: Sequence[ReadableSegment], producers: ProducerStates) -> None:
    """Completes the batches of producers from the ends of the segments, which are in order."""
    if not any(_is_incomplete(entry) for entry in producers.entries.values()):
        return
    try:
        found = _replay_tails(segments)
    except Corrupt:
        return  # who reads or checks the log is told; what the snapshot says is enough to go on
    for producer_id, entry in producers.entries.items():
        other = found.entries.get(producer_id)
        if other is not None and _is_incomplete(entry) and _leads_to(other, entry):
            older = other.batches[: -len(entry.batches)]
            producers.entries[producer_id] = entry._replace(batches=(*older, *entry.batches))


def _replay_tails(segments: Sequence[ReadableSegment]) -> ProducerStates:
    found = ProducerStates()
    for segment in segments:
        start = _tail_position(segment)
        for table in BatchWalk(segment.file(), start=start, end=segment.size, verify_crc=False):
            replay_batches(table, found, None, where=segment.path(LOG))
    return found


def _is_incomplete(entry: ProducerEntry) -> bool:
    return 0 < len(entry.batches) < CACHED_BATCH_COUNT


def _leads_to(other: ProducerEntry, entry: ProducerEntry) -> bool:
    """Whether the other one knows the same newest batches."""
    newest = other.batches[-len(entry.batches) :]
    return other.epoch == entry.epoch and (
        [(one.last_sequence, one.last_offset) for one in newest]
        == [(one.last_sequence, one.last_offset) for one in entry.batches]
    )


def _tail_position(segment: ReadableSegment) -> int:
    """Where a batch begins that has the end of the segment behind it."""
    entries = segment.offset_index().entries()
    number = int(np.searchsorted(entries[:, 1], segment.size - RECALLED_BYTES, side="right")) - 1
    if number < 0:
        return 0
    return find_start_position(segment, int(entries[number, 0]), size=segment.size)
