"""How topics become rows: where they are read, how records are decoded, where a table begins.

Invariant  the signature of a table names all that decides how its rows look; with another one the
           table is made anew.
"""

import importlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import typer

from varve.disk import FileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.errors import NotFound, Unavailable
from varve.shapes.feed.counts import FeedCounts
from varve.shapes.feed.debezium_decoder import DebeziumDecoder
from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.key_index_state import KeyIndexState
from varve.shapes.feed.order import Gate
from varve.shapes.feed.plain_decoder import PlainDecoder
from varve.shapes.feed.replay_state import ReplayState
from varve.shapes.feed.state import StateReader
from varve.shapes.feed.topic_feed import OpenState, TopicFeed, access_may_return
from varve.shapes.feed.transactions import SourceTransactions
from varve.shapes.feed.whole_state import WholeState
from varve.topics import TopicReader, open_cluster

if TYPE_CHECKING:
    from varve.kafka_client.address import ClusterAddress

logger = logging.getLogger(__name__)

KEY_COLUMN: Final = "key"
_CHECK_MS: Final = 5_000
_TOLD_MAX: Final = 1_000
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How the records of one topic are read."""

    key_column: str = KEY_COLUMN
    is_debezium: bool = False
    transactions: str | None = None
    """The topic where Debezium tells of the ends of transactions; without it each record is one."""
    snapshot: str | None = None
    """Where a snapshot of a Spark job lies that the table begins with."""

    @property
    def signature(self) -> str:
        form = "debezium" if self.is_debezium else "plain"
        return " ".join(filter(None, (form, self.key_column, self.transactions)))


def parse_topics(
    key_columns: Sequence[str], debezium: Sequence[str], snapshots: Sequence[str] = ()
) -> dict[str, TopicOptions]:
    """What was said of single topics; raises BadParameter."""
    found: dict[str, TopicOptions] = {}

    def note(topic: str, **told: Any) -> None:
        found[topic] = replace(found.get(topic, TopicOptions()), **told)

    for topic, column in map(_parse_pair, key_columns):
        note(topic, key_column=column)
    for text in debezium:
        topic, has_more, transactions = text.partition("=")
        if not topic or (has_more and not transactions):
            raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC or TOPIC=...")
        note(topic, is_debezium=True, transactions=transactions or None)
    for topic, url in map(_parse_pair, snapshots):
        note(topic, snapshot=url)
    return found


def _parse_pair(text: str) -> tuple[str, str]:
    topic, _, told = text.partition("=")
    if not topic or not told:
        raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC=...")
    return topic, told


class FeedMaker:
    """Makes the feed of a topic when somebody asks for the first shape of it."""

    def __init__(
        self,
        place: "Store | ClusterAddress",
        topics: Mapping[str, TopicOptions],
        directory: str,
        *,
        files: FileSystem,
        clock: Clock,
        beside: Sequence[str] = (),
    ) -> None:
        """`beside` are the log directories of the server, where they lie on this machine."""
        self._place = place
        self._topics = topics
        self._directory = directory
        self._files = files
        self._clock = clock
        self._beside = tuple(beside)
        self._end = threading.Event()
        self._told: dict[str, str] = {}
        self._cluster = open_cluster(place, wait=self._wait)
        if beside or any(one.snapshot is not None for one in topics.values()):
            # Before there are threads: feeds that import Spark's modules at once block each other.
            importlib.import_module("varve.cli.shape_states")

    def check_place(self) -> None:
        """Raises StoreDenied where the broker refuses the login, or shows a wrong certificate.

        One that is away is waited for, and told of."""
        if isinstance(self._place, Store):
            return
        from varve.kafka_client.client import KafkaClient
        from varve.wire.messages.cluster import MetadataRequest, MetadataResponse

        hurried = replace(self._place, timeout_ms=min(self._place.timeout_ms, _CHECK_MS))
        client = KafkaClient(hurried, self._wait)
        try:
            client.send_to_any(MetadataRequest([], False), MetadataResponse)
        except Unavailable as error:
            logger.warning("broker does not answer", extra={"error": str(error)})
        finally:
            client.close()

    def end(self) -> None:
        """Nobody waits for a broker any more that is away."""
        self._end.set()

    def close(self) -> None:
        """Closes the connections to the broker, once no feed is open."""
        self._cluster.close()

    def make(self, topic: str) -> TopicFeed:
        """Raises NotFound where there is no such topic, InvalidRequest where there can be none."""
        if topic in _INTERNAL:
            raise NotFound(f"topic {topic} is the broker's own: it has no shapes")
        options = self._topics.get(topic, TopicOptions())
        reader = self._cluster.reader(topic)
        try:
            with access_may_return():
                reader.info()
        except BaseException as error:
            reader.close()
            self._tell_once(topic, error)
            raise
        self._told.pop(topic, None)
        counts = FeedCounts()
        feed = TopicFeed(
            reader,
            _make_decoder(options),
            self._open_state(reader, options),
            directory=self._directory,
            fs=self._files,
            clock=self._clock,
            signature=options.signature,
            gate=self._gate(topic, options, counts),
        )
        # What the gate counts belongs to the feed's figures.
        feed.counts = counts
        return feed

    def _tell_once(self, topic: str, error: BaseException) -> None:
        """Who asks for a shape is told to come again: what is to be mended stands in the log."""
        is_new = self._told.get(topic) != str(error) and len(self._told) < _TOLD_MAX
        if isinstance(error, Unavailable) and is_new:
            self._told[topic] = str(error)
            logger.warning("topic cannot be read", extra={"topic": topic, "error": str(error)})

    def _wait(self, seconds: float) -> None:
        """A pause of a client; raises Unavailable when the server of shapes stops."""
        if self._end.wait(seconds):
            raise Unavailable("the server of shapes stops, and waits for no broker any more")

    def _open_state(self, reader: TopicReader, options: TopicOptions) -> OpenState:
        """How the latest record of each key is found when the table is new."""
        url = options.snapshot
        if url is not None:
            return lambda: _open_snapshot(url, reader, self._clock)
        if options.transactions is not None:
            return lambda: WholeState(reader, _make_decoder(options))
        if options.is_debezium:
            # The latest record of a key tells neither of truncations nor of what was left out.
            return lambda: ReplayState(reader)
        store = self._place
        if isinstance(store, Store):
            return lambda: KeyIndexState(store, reader)
        if self._beside:
            return lambda: _open_files(reader, self._beside)
        return lambda: ReplayState(reader)

    def _gate(self, topic: str, options: TopicOptions, counts: FeedCounts) -> Gate | None:
        if options.transactions is None:
            return None
        ends = self._cluster.reader(options.transactions)
        return SourceTransactions(ends, topic, counts, self._clock)


def _open_snapshot(url: str, reader: TopicReader, clock: Clock) -> StateReader:
    from varve.cli.shape_states import open_snapshot_state

    return open_snapshot_state(url, reader, clock)


def _open_files(reader: TopicReader, directories: Sequence[str]) -> StateReader:
    from varve.cli.shape_states import FilesState

    return FilesState(reader, directories)


def _make_decoder(options: TopicOptions) -> Decoder:
    if options.is_debezium:
        return DebeziumDecoder(options.key_column)
    return PlainDecoder(options.key_column)
