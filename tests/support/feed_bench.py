"""A feed over a store in the same process, which can be crashed and opened again.

Invariant  a crash keeps what a killed process keeps: all bytes that were handed to the system.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import varve
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock, ManualClock
from varve.shapes.feed.changes import Change, Transaction
from varve.shapes.feed.decoders import Decoder, PlainDecoder
from varve.shapes.feed.initial_load import FullScan, InitialRows
from varve.shapes.feed.row import Row
from varve.shapes.feed.source_transactions import SourceTransactions
from varve.shapes.feed.topic_feed import TopicFeed
from varve.shapes.offset import ShapeOffset
from varve.topics import StoreCluster, TopicReader

TOPIC: Final = "orders"
_POLLS_MAX: Final = 10_000


def build_feed(
    source: TopicReader,
    directory: Path | str,
    *,
    decoder: Decoder | None = None,
    rows: Callable[[TopicReader], InitialRows] = FullScan,
    fs: FileSystem | None = None,
    clock: Clock | None = None,
    signature: str = "plain key",
    grouping: SourceTransactions | None = None,
) -> TopicFeed:
    """A feed of plain records on the real disk, unless told otherwise."""
    return TopicFeed(
        source,
        decoder or PlainDecoder(),
        rows,
        directory=str(directory),
        fs=fs or RealFileSystem(),
        clock=clock or ManualClock(),
        signature=signature,
        grouping=grouping,
    )


class FeedBench:
    """A topic and its feed."""

    def __init__(
        self,
        path: Path,
        *,
        partitions: int = 1,
        settings: dict[str, str | int] | None = None,
        decoder: Decoder | None = None,
        make_grouping: Callable[["FeedBench"], SourceTransactions] | None = None,
        fs: FileSystem | None = None,
    ) -> None:
        self.path = path
        self.clock = ManualClock()
        self.fs = fs or RealFileSystem()
        self.store: Store = varve.open(path / "store", maintain=False)
        self.topic = self.store.create_topic(TOPIC, partitions=partitions, settings=settings)
        self.decoder = decoder or PlainDecoder()
        self.signature = "plain key"
        self.make_rows: Callable[[TopicReader], InitialRows] = FullScan
        self._make_grouping = make_grouping
        self.feed = self.make_feed()

    def make_feed(self) -> TopicFeed:
        return build_feed(
            StoreCluster(self.store).reader(TOPIC),
            self.path / "tables",
            decoder=self.decoder,
            rows=lambda reader: self.make_rows(reader),
            fs=self.fs,
            clock=self.clock,
            signature=self.signature,
            grouping=None if self._make_grouping is None else self._make_grouping(self),
        )

    def open(self) -> str | None:
        """Opens the feed, and takes a reset for carried out."""
        reset = self.feed.open()
        if reset is not None:
            self.feed.checkpoint(self.feed.mark())
        return None if reset is None else reset.text

    def crash(self) -> str | None:
        """Forgets what is in memory, and opens the feed again."""
        self.feed.close()
        self.feed = self.make_feed()
        reset = self.feed.open()
        return None if reset is None else reset.text

    def put(self, key: str, row: dict[str, Any] | None, *, partition: int | None = None) -> None:
        value = None if row is None else json.dumps(row).encode()
        self.topic.append(key=key.encode(), value=value, partition=partition)

    def poll(self, count: int = 1000) -> list[Transaction]:
        return self.feed.poll(max_records=count, wait_ms=0)

    def poll_all(self, count: int = 1000) -> list[Transaction]:
        """Polls until nothing more comes."""
        given: list[Transaction] = []
        for _ in range(_POLLS_MAX):
            had = self.feed.counts.records
            given += self.poll(count)
            if self.feed.counts.records == had and self.feed.is_caught_up:
                return given
        raise AssertionError("the feed does not come to an end")

    def changes(self) -> list[Change]:
        return [change for one in self.poll_all() for change in one.changes]

    def rows(self) -> dict[str, Row]:
        with self.feed.view() as view:
            return dict(view.rows())

    def close(self) -> None:
        self.feed.close()
        self.store.close()


BenchMaker = Callable[..., FeedBench]


def row_key_of(key: str) -> str:
    return f'"public"."{TOPIC}"/"{key}"'


def short(change: Change) -> tuple[str, bytes | None, bytes | None]:
    """The key, and the column n before and after, of a change; after comes first."""
    row = None if change.row is None else change.row["n"]
    previous = None if change.previous is None else change.previous["n"]
    return change.key[len(row_key_of("")) - 1 : -1], row, previous


class FollowedShape:
    """What a client of a filtered shape of a feed has, and what of it is durable."""

    def __init__(self, is_in: Callable[[Row], bool] = lambda row: True) -> None:
        self.rows: dict[str, Row] = {}
        self.start = self.seen = self.told = ShapeOffset(0, 0)
        """Where it began, where it is, and the highest offset that a client was ever given."""
        self._is_in = is_in
        self._durable: tuple[dict[str, Row], ShapeOffset] = ({}, self.seen)

    def take(self, change: Change) -> None:
        if change.offset <= self.seen:
            return
        row, previous = change.row, change.previous
        if row is not None and self._is_in(row):
            self.rows[change.key] = row
        elif change.is_uncertain or (previous is not None and self._is_in(previous)):
            self.rows.pop(change.key, None)
        else:
            return
        self.seen = change.offset
        self.told = max(self.told, self.seen)

    def flush(self) -> None:
        self._durable = (dict(self.rows), self.seen)

    def crash(self) -> None:
        rows, self.seen = self._durable
        self.rows = dict(rows)

    def begin(self, feed: TopicFeed) -> None:
        """Starts anew from the table."""
        with feed.view() as view:
            self.rows = {key: row for key, row in view.rows() if self._is_in(row)}
            self.start = self.seen = self.told = view.position
        self.flush()
