"""What becomes of each record of a chunk: the rules of the deduplicating processor.

Rules      in this order: a record without an id; without a time; from the future, more than
           `max_future_ms` after now; late, more than `lateness_ms` before the stream time; a
           duplicate, if a record of the same id and of a lower offset was kept whose time lies from
           `before_ms` earlier to `after_ms` later; else it is kept.
           The stream time is the largest time of all earlier records that have one and are not from
           the future. It is a function of the input: what is kept or known does not move it.
Invariant  records are looked at in the order of offsets; where chunks are cut changes nothing.
           Whatever is not late is compared with its whole window.
           Nothing is changed: the store goes on with `IdStore.apply`, once the chunk is committed.
           Few records are judged in plain Python, more by kernels: the answers are the same.
"""

from dataclasses import dataclass

import numpy as np

from varve.kernels.window_spans import (
    NO_WITNESS,
    Rows,
    classify,
    judge_records,
    make_spans,
    need_other,
)
from varve.windows.dedup.cells import CellRows, find_window_cells
from varve.windows.dedup.few_records import FEW_COUNT_MAX, FewRecords
from varve.windows.dedup.id_store import IdStore, News, SpanRows
from varve.windows.dedup.ids import Arrivals, Numbers
from varve.windows.dedup.rules import DedupRules
from varve.windows.dedup.verdict import Counts, Verdict, Verdicts


@dataclass(frozen=True, slots=True)
class Judgement:
    """What each record of a chunk is, and what is to be remembered.

    `witness_offsets` names for each duplicate a record that was kept, and is NO_WITNESS elsewhere.
    In a refreshing window that record may lie further back than the window: copies between them
    were duplicates of it.
    """

    verdicts: Verdicts
    witness_offsets: Numbers
    news: News
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
        """Tells what each record is, given the stream time before the first of them.

        What is before `whole_from_ms` is late as well: ids that it is compared with may be gone.
        """
        if len(chunk) <= self._few_count_max:
            return self._judge_few(chunk, now_ms, stream_time_ms, whole_from_ms)
        return self._judge_many(chunk, now_ms, stream_time_ms, whole_from_ms)

    def _judge_few(
        self, chunk: Arrivals, now_ms: int, stream_time_ms: int, whole_from_ms: int
    ) -> Judgement:
        rules, store = self._rules, self._store
        few = FewRecords(rules, store.find_span, stream_time_ms)
        time_max_ms = now_ms + rules.max_future_ms
        few.judge(chunk, time_max_ms=time_max_ms, whole_from_ms=whole_from_ms)
        verdicts = np.frombuffer(few.verdicts, np.uint8)
        witnesses = np.array(few.witnesses, np.int64)
        news = News(few.entries(chunk), few.changed, store.version)
        return Judgement(verdicts, witnesses, news, few.stream_time_ms)

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
        found = find_window_cells(chunk, chosen, rules, self._store.secret)
        news = self._compare(chunk, chosen, found, verdicts, witnesses)
        return Judgement(verdicts, witnesses, news, int(stream_time_after))

    def _compare(
        self,
        chunk: Arrivals,
        chosen: Numbers,
        found: CellRows,
        verdicts: Verdicts,
        witnesses: Numbers,
    ) -> News:
        rules, cells = self._rules, found.cells
        spans = self._probe(chunk, chosen, found)
        is_news = np.zeros(len(chosen), np.bool_)
        is_changed = np.zeros(len(cells), np.bool_)
        judge_records(
            chunk.times,
            chunk.offsets,
            chosen,
            rules.before_ms,
            rules.after_ms,
            rules.is_refreshing,
            found.own,
            found.other,
            spans,
            verdicts,
            witnesses,
            is_news,
            is_changed,
        )
        return News(
            self._entries(chunk, chosen[is_news], witnesses),
            SpanRows(cells[is_changed], spans[is_changed]),
            self._store.version,
        )

    def _probe(self, chunk: Arrivals, chosen: Numbers, found: CellRows) -> Rows:
        """The spans of all cells that matter: own ones, and others where the own is no answer."""
        spans = make_spans(len(found.cells))
        is_known = np.zeros(len(spans), np.bool_)
        is_known[found.own] = True
        self._store.probe(found.cells, np.flatnonzero(is_known), spans)
        is_needed = is_known.copy()
        need_other(
            chunk.times,
            chunk.offsets,
            chosen,
            self._rules.before_ms,
            self._rules.after_ms,
            found.own,
            found.other,
            spans,
            is_needed,
        )
        self._store.probe(found.cells, np.flatnonzero(is_needed & ~is_known), spans)
        return spans

    def _entries(self, chunk: Arrivals, chosen: Numbers, witnesses: Numbers) -> Arrivals:
        """What is remembered: of a copy that begins the window anew, the kept record's offset."""
        found = chunk.take(chosen)
        firsts = np.where(witnesses[chosen] == NO_WITNESS, found.offsets, witnesses[chosen])
        return Arrivals(found.words, found.kinds, found.times, firsts)
