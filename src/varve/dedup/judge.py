"""Judges each record of a chunk: kept, duplicate, late, from the future, or not comparable.

Rules      in this order: a record without an id; without a time; from the future, more than
           `max_future_ms` after now; late, more than `lateness_ms` before the stream time; a
           duplicate, if a record of the same id and of a lower offset was kept whose time lies from
           `before_ms` earlier to `after_ms` later; else it is kept.
           The stream time is the largest time of all earlier records that have one and are not from
           the future. It depends on the input alone, not on which records were kept.
Invariant  records are judged in the order of offsets; chunk boundaries do not affect the result.
           A record that is not late is compared with its whole window.
           A judge changes nothing: `IdStore.apply` updates the store after the commit.
           Few records are judged in Python, more by kernels, with the same results.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.dedup.id_store import Cell, CellRows, IdStore, NewIds, Span, SpanRows, find_window_cells
from varve.dedup.ids import Arrivals, Numbers
from varve.dedup.kernels.id_words import NO_ID
from varve.dedup.kernels.time_spans import (
    DUPLICATE,
    FUTURE,
    KEPT,
    LATE,
    MISSING,
    NO_ID_FOUND,
    NO_WITNESS,
    Rows,
    classify,
    judge_records,
    make_spans,
    need_other,
)
from varve.dedup.rules import Counts, DedupRules, Verdict, Verdicts

FEW_COUNT_MAX: Final = 64
"""At this count Python and kernels are equally fast; one record is ten times faster in Python."""
_NO_ARRIVALS: Final = Arrivals.join([])


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict on each record of a chunk, and the ids to store.

    `witness_offsets` has for each duplicate the offset of the kept record, and NO_WITNESS for all
    others. With refreshing windows the kept record may be older than the window: copies between the
    two were duplicates of it.
    """

    verdicts: Verdicts
    witness_offsets: Numbers
    new_ids: NewIds
    stream_time_after: int

    @property
    def counts(self) -> Counts:
        return Counts.of(self.verdicts)


class Judge:
    """Judges chunks of one partition, one after the other."""

    def __init__(
        self, rules: DedupRules, store: IdStore, *, few_count_max: int = FEW_COUNT_MAX
    ) -> None:
        assert rules.fingerprint() == store.rules.fingerprint()
        self._rules = rules
        self._store = store
        self._few_count_max = few_count_max

    def judge(
        self, chunk: Arrivals, now_ms: int, stream_time_ms: int, *, whole_from_ms: int = 0
    ) -> Judgement:
        """Classifies each record, given the stream time before the first of them.

        Records before `whole_from_ms` are late as well: ids of their windows may be missing.
        """
        if len(chunk) <= self._few_count_max:
            return self._judge_few(chunk, now_ms, stream_time_ms, whole_from_ms)
        return self._judge_many(chunk, now_ms, stream_time_ms, whole_from_ms)

    def _judge_few(
        self, chunk: Arrivals, now_ms: int, stream_time_ms: int, whole_from_ms: int
    ) -> Judgement:
        rules, store = self._rules, self._store
        judge = SmallBatchJudge(rules, store, stream_time_ms)
        time_max_ms = now_ms + rules.max_future_ms
        judge.judge(chunk, time_max_ms=time_max_ms, whole_from_ms=whole_from_ms)
        verdicts = np.frombuffer(judge.verdicts, np.uint8)
        witnesses = np.array(judge.witnesses, np.int64)
        new_ids = NewIds(judge.entries(chunk), judge.changed, store.version)
        return Judgement(verdicts, witnesses, new_ids, judge.stream_time_ms)

    def _judge_many(
        self, chunk: Arrivals, now_ms: int, stream_time_ms: int, whole_from_ms: int
    ) -> Judgement:
        rules = self._rules
        verdicts = np.empty(len(chunk), np.uint8)
        stream_time_after = classify(
            chunk.kinds,
            chunk.times,
            now_ms + rules.max_future_ms,
            rules.lateness_ms,
            stream_time_ms,
            verdicts,
        )
        verdicts[(verdicts == Verdict.KEPT) & (chunk.times < whole_from_ms)] = Verdict.LATE
        witnesses = np.full(len(chunk), NO_WITNESS)
        chosen = np.flatnonzero(verdicts == Verdict.KEPT)
        rows = find_window_cells(chunk, chosen, rules, self._store.secret)
        new_ids = self._compare(chunk, chosen, rows, verdicts, witnesses)
        return Judgement(verdicts, witnesses, new_ids, int(stream_time_after))

    def _compare(
        self,
        chunk: Arrivals,
        chosen: Numbers,
        rows: CellRows,
        verdicts: Verdicts,
        witnesses: Numbers,
    ) -> NewIds:
        rules, cells = self._rules, rows.cells
        spans = self._probe(chunk, chosen, rows)
        is_new = np.zeros(len(chosen), np.bool_)
        is_changed = np.zeros(len(cells), np.bool_)
        judge_records(
            chunk.times,
            chunk.offsets,
            chosen,
            rules.before_ms,
            rules.after_ms,
            rules.is_refreshing,
            rows.own,
            rows.other,
            spans,
            verdicts,
            witnesses,
            is_new,
            is_changed,
        )
        return NewIds(
            self._entries(chunk, chosen[is_new], witnesses),
            SpanRows(cells[is_changed], spans[is_changed]),
            self._store.version,
        )

    def _probe(self, chunk: Arrivals, chosen: Numbers, rows: CellRows) -> Rows:
        """Reads the spans of each record's own cell, and of the other one if necessary."""
        spans = make_spans(len(rows.cells))
        is_read = np.zeros(len(spans), np.bool_)
        is_read[rows.own] = True
        self._store.probe(rows.cells, np.flatnonzero(is_read), spans)
        is_needed = is_read.copy()
        need_other(
            chunk.times,
            chunk.offsets,
            chosen,
            self._rules.before_ms,
            self._rules.after_ms,
            rows.own,
            rows.other,
            spans,
            is_needed,
        )
        self._store.probe(rows.cells, np.flatnonzero(is_needed & ~is_read), spans)
        return spans

    def _entries(self, chunk: Arrivals, chosen: Numbers, witnesses: Numbers) -> Arrivals:
        """The entries to store; a copy that restarts the window has the kept record's offset."""
        arrivals = chunk.take(chosen)
        firsts = np.where(witnesses[chosen] == NO_WITNESS, arrivals.offsets, witnesses[chosen])
        return Arrivals(arrivals.words, arrivals.kinds, arrivals.times, firsts)


class SmallBatchJudge:
    """Judges a few records in Python, one after the other.

    `verdicts` and `witnesses` have one element for each record; `changed` has the changed spans.
    """

    __slots__ = (
        "_firsts",
        "_new_indexes",
        "_rules",
        "_spans",
        "_store",
        "changed",
        "stream_time_ms",
        "verdicts",
        "witnesses",
    )

    def __init__(self, rules: DedupRules, store: IdStore, stream_time_ms: int) -> None:
        self.stream_time_ms = stream_time_ms
        self.verdicts = bytearray()
        self.witnesses: list[int] = []
        self.changed: dict[Cell, Span] = {}
        self._rules = rules
        self._store = store
        self._spans: dict[Cell, Span | None] = {}
        self._new_indexes: list[int] = []
        self._firsts: list[int] = []

    def judge(self, chunk: Arrivals, *, time_max_ms: int, whole_from_ms: int) -> None:
        words, kinds = chunk.words.view(np.int64).tolist(), chunk.kinds.tolist()
        times, offsets = chunk.times.tolist(), chunk.offsets.tolist()
        stream_time_ms, lateness_ms = self.stream_time_ms, self._rules.lateness_ms
        for index, kind in enumerate(kinds):
            time, verdict, witness = times[index], KEPT, NO_WITNESS
            if time < 0:
                verdict = MISSING
            elif time > time_max_ms:
                verdict = FUTURE
            else:
                if time < stream_time_ms - lateness_ms or time < whole_from_ms:
                    verdict = LATE
                stream_time_ms = max(stream_time_ms, time)
            if kind == NO_ID:
                verdict = NO_ID_FOUND
            elif verdict == KEPT:
                first, second = words[index]
                witness = self._compare(index, first, second, kind, time, offsets[index])
                if witness != NO_WITNESS:
                    verdict = DUPLICATE
            self.verdicts.append(verdict)
            self.witnesses.append(witness)
        self.stream_time_ms = stream_time_ms

    def entries(self, chunk: Arrivals) -> Arrivals:
        """The entries to store, with the offsets of kept records."""
        if not self._new_indexes:
            return _NO_ARRIVALS
        arrivals = (
            chunk
            if len(self._new_indexes) == len(chunk)
            else chunk.take(np.array(self._new_indexes))
        )
        if not self._rules.is_refreshing:
            return arrivals
        firsts = np.array(self._firsts, np.int64)
        return Arrivals(arrivals.words, arrivals.kinds, arrivals.times, firsts)

    def _compare(
        self, index: int, first: int, second: int, kind: int, time: int, offset: int
    ) -> int:
        """The offset of the kept record that this one duplicates, or NO_WITNESS."""
        rules = self._rules
        low, high, width = time - rules.before_ms, time + rules.after_ms, rules.cell_ms
        number = time // width
        cell = (first, second, kind, number)
        span = self._find(cell)
        witness = _find_witness(span, low, high, offset)
        if witness == NO_WITNESS:
            lowest, highest = low // width, high // width
            if lowest != highest:
                other = self._find((first, second, kind, lowest + highest - number))
                witness = _find_witness(other, low, high, offset)
        if witness == NO_WITNESS or rules.is_refreshing:
            kept = offset if witness == NO_WITNESS else witness
            extended = _extend(span, time, kept)
            if extended is not span:
                self._spans[cell] = self.changed[cell] = extended
                self._new_indexes.append(index)
                self._firsts.append(kept)
        return witness

    def _find(self, cell: Cell) -> Span | None:
        if cell not in self._spans:
            self._spans[cell] = self._store.find_span(cell)
        return self._spans[cell]


def _find_witness(span: Span | None, low: int, high: int, offset: int) -> int:
    if span is None:
        return NO_WITNESS
    least, least_offset, largest, largest_offset = span
    if low <= least <= high and least_offset < offset:
        return least_offset
    if low <= largest <= high and largest_offset < offset:
        return largest_offset
    return NO_WITNESS


def _extend(span: Span | None, time: int, offset: int) -> Span:
    """The span extended by a time; the same object if it includes the time."""
    if span is None:
        return time, offset, time, offset
    if span[0] <= time <= span[2]:
        return span
    if time < span[0]:
        return time, offset, span[2], span[3]
    return span[0], span[1], time, offset
