"""Opens an engine of shapes over an open store or a Kafka cluster, and the feeds of its topics.

Layout     <directory>/tables holds the rows of each topic; the rest is the engine's.
Invariant  the signature of a table covers all options that determine its rows; a table with another
           signature is loaded again.
Threads    any; the engine has threads of its own until its block ends.
"""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Final

from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock, SystemClock
from varve.foundation.errors import InvalidRequest, NotFound, Unavailable
from varve.kafka_client.address import BOOTSTRAP, ClusterAddress, parse_cluster_address
from varve.kafka_client.client import KafkaClient
from varve.rocks.database import MemoryBudget
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.changes import FeedCounts
from varve.shapes.feed.decoders import DebeziumDecoder, Decoder, PlainDecoder
from varve.shapes.feed.initial_load import (
    FullScan,
    InitialRows,
    KeyIndexScan,
    OpenRows,
    TransactionAlignedScan,
)
from varve.shapes.feed.source_transactions import SourceTransactions
from varve.shapes.feed.topic_feed import TopicFeed, access_may_return
from varve.shapes.settings import CompactionSettings, EngineSettings
from varve.topics import TopicInfo, TopicReader, open_cluster
from varve.topics.outputs import DerivedOutput, OutputKind
from varve.wire.messages.cluster import MetadataRequest, MetadataResponse
from varve.wire.messages.state_records import INTERNAL_TOPICS

logger = logging.getLogger(__name__)

KEY_COLUMN: Final = "key"
OpenSnapshot = Callable[[str, TopicReader], InitialRows]
"""Opens a snapshot by its URL; raises InvalidRequest for one that does not fit the topic."""
_CHECK_TIMEOUT_MS: Final = 5_000
_LOGGED_TOPICS_MAX: Final = 1_000
_REFUSED_TOPICS: Final = INTERNAL_TOPICS | {"__cluster_metadata"}


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How the records of one topic are read."""

    key_column: str = KEY_COLUMN
    is_debezium: bool = False
    transactions: str | None = None
    """The topic where Debezium writes the ends of transactions; without it each record is one."""
    snapshot: str | None = None
    """The URL of a snapshot that the table starts with."""

    @property
    def signature(self) -> str:
        form = "debezium" if self.is_debezium else "plain"
        return " ".join(filter(None, (form, self.key_column, self.transactions)))

    def make_decoder(self) -> Decoder:
        if self.is_debezium:
            return DebeziumDecoder(self.key_column)
        return PlainDecoder(self.key_column)


class FeedFactory:
    """Opens the feed of a topic when the first shape of it is created.

    All feeds share one connection for metadata, and one memory budget of their databases.
    """

    def __init__(
        self,
        source: Store | ClusterAddress,
        topics: Mapping[str, TopicOptions],
        directory: str,
        *,
        fs: FileSystem,
        clock: Clock,
        open_snapshot: OpenSnapshot | None = None,
        open_files: OpenRows | None = None,
    ) -> None:
        """`directory` has the tables of all topics. `open_files` reads the log directories of the
        broker, where they are on this machine."""
        self._source = source
        self._topics = topics
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._open_snapshot = open_snapshot
        self._open_files = open_files
        self._is_stopping = threading.Event()
        self._logged: dict[str, str] = {}
        self._budget = MemoryBudget()
        self._cluster = open_cluster(source, wait=self._wait)

    def check_access(self) -> None:
        """Raises StoreDenied where the broker refuses the login, or has a certificate that is not
        trusted. A broker that does not answer is logged: feeds wait for it."""
        if isinstance(self._source, Store):
            return
        timeout_ms = min(self._source.timeout_ms, _CHECK_TIMEOUT_MS)
        client = KafkaClient(replace(self._source, timeout_ms=timeout_ms), self._wait)
        try:
            client.send_to_any(MetadataRequest([], False), MetadataResponse)
        except Unavailable as error:
            logger.warning("broker does not answer", extra={"error": str(error)})
        finally:
            client.close()

    def stop_waiting(self) -> None:
        """Ends all waits for a broker that does not answer."""
        self._is_stopping.set()

    def close(self) -> None:
        """Closes the connection for metadata, once no feed is open."""
        self._cluster.close()

    def make(self, topic: str) -> TopicFeed:
        """Raises NotFound without such a topic, InvalidRequest for an invalid name."""
        if topic in _REFUSED_TOPICS:
            raise NotFound(f"topic {topic} is internal to the broker: it has no shapes")
        options = self._topics.get(topic, TopicOptions())
        reader = self._cluster.reader(topic)
        try:
            with access_may_return():
                self._register(reader.info())
        except BaseException as error:
            reader.close()
            self._log_once(topic, error)
            raise
        self._logged.pop(topic, None)
        counts = FeedCounts()
        return TopicFeed(
            reader,
            options.make_decoder(),
            self._find_rows(options),
            directory=self._directory,
            fs=self._fs,
            clock=self._clock,
            signature=options.signature,
            grouping=self._group_transactions(topic, options, counts),
            counts=counts,
            budget=self._budget,
        )

    def _register(self, topic: TopicInfo) -> None:
        """Registers the directory of the shapes, before the first row of the topic is in it."""
        self._cluster.register_output(
            DerivedOutput(
                kind=OutputKind.SHAPES,
                topic=topic.name,
                topic_id=topic.id_text,
                place=os.path.abspath(os.path.dirname(self._directory)),
                name=topic.name,
                noted_ms=self._clock.now_ms(),
            )
        )

    def _log_once(self, topic: str, error: BaseException) -> None:
        """Logs an error once, for operators; clients only get the request to try again."""
        is_new = self._logged.get(topic) != str(error) and len(self._logged) < _LOGGED_TOPICS_MAX
        if isinstance(error, Unavailable) and is_new:
            self._logged[topic] = str(error)
            logger.warning("topic cannot be read", extra={"topic": topic, "error": str(error)})

    def _wait(self, seconds: float) -> None:
        """A pause of a client; raises Unavailable when the server of shapes stops."""
        if self._is_stopping.wait(seconds):
            raise Unavailable("the server of shapes stops, and does not wait for a broker")

    def _find_rows(self, options: TopicOptions) -> OpenRows:
        """How the latest record of each key is found for a new table."""
        if options.snapshot is not None:
            assert self._open_snapshot is not None, "a snapshot needs a function that opens it"
            return partial(self._open_snapshot, options.snapshot)
        if options.transactions is not None:
            return partial(TransactionAlignedScan, decoder=options.make_decoder())
        if options.is_debezium:
            # The latest record of a key has neither truncations nor columns that were left out.
            return FullScan
        if isinstance(self._source, Store):
            return partial(KeyIndexScan, self._source)
        return self._open_files or FullScan

    def _group_transactions(
        self, topic: str, options: TopicOptions, counts: FeedCounts
    ) -> SourceTransactions | None:
        if options.transactions is None:
            return None
        ends = self._cluster.reader(options.transactions)
        return SourceTransactions(ends, topic, counts, self._clock)


TABLES: Final = "tables"
_NO_OPTIONS: Final[Mapping[str, TopicOptions]] = {}


@contextmanager
def open(
    directory: str | os.PathLike[str],
    *,
    cluster: Store | ClusterAddress | str,
    topics: Mapping[str, TopicOptions] = _NO_OPTIONS,
    settings: EngineSettings | None = None,
    compaction: CompactionSettings | None = None,
) -> Iterator[ShapeEngine]:
    """An engine over the topics of a cluster: an open store, an address, or "host:port".

    `topics` says how the records of single topics are read; others are JSON objects by key. Shapes
    are kept in the directory, and continue there when it is opened again.
    """
    root, fs, clock = os.fspath(directory), RealFileSystem(), SystemClock()
    source = _parse_address(cluster) if isinstance(cluster, str) else cluster
    feeds = FeedFactory(source, topics, f"{root}/{TABLES}", fs=fs, clock=clock)
    with open_engine(root, feeds, settings, compaction) as engine:
        yield engine


@contextmanager
def open_engine(
    root: str,
    feeds: FeedFactory,
    settings: EngineSettings | None,
    compaction: CompactionSettings | None,
) -> Iterator[ShapeEngine]:
    """An engine over feeds, which are closed with it."""
    with (
        closing(feeds),
        ShapeEngine(
            root,
            feeds.make,
            fs=RealFileSystem(),
            clock=SystemClock(),
            random=Random(),
            settings=settings,
            compaction=compaction,
        ).open() as engine,
    ):
        try:
            yield engine
        finally:
            feeds.stop_waiting()


def _parse_address(text: str) -> ClusterAddress:
    address = parse_cluster_address({BOOTSTRAP: text})
    if address is None:
        raise InvalidRequest("the address of the cluster is empty: write host:port")
    return address
