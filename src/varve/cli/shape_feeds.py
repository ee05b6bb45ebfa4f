"""How topics become rows: where they are read, how records are decoded, where a table begins.

Invariant  the signature of a table names all that decides how its rows look; with another one the
           table is made anew.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import typer

from varve.cli.store_access import parse_setting
from varve.disk import FileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.errors import InvalidRequest, NotFound
from varve.shapes.feed.debezium_decoder import DebeziumDecoder
from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.embedded_source import EmbeddedSource
from varve.shapes.feed.key_index_state import KeyIndexState
from varve.shapes.feed.plain_decoder import PlainDecoder
from varve.shapes.feed.replay_state import ReplayState
from varve.shapes.feed.server_source import ServerSource
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.topic_feed import OpenState, TopicFeed

if TYPE_CHECKING:
    from varve.kafka_client.address import ServerAddress

KEY_COLUMN: Final = "key"
_INTERNAL: Final = frozenset({"__consumer_offsets", "__transaction_state", "__cluster_metadata"})


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How the records of one topic are read."""

    key_column: str = KEY_COLUMN
    is_debezium: bool = False

    @property
    def signature(self) -> str:
        form = "debezium" if self.is_debezium else "plain"
        return f"{form} {self.key_column}"


def parse_topics(key_columns: Sequence[str], debezium: Sequence[str]) -> dict[str, TopicOptions]:
    """What was said of single topics; raises BadParameter."""
    found: dict[str, TopicOptions] = {}
    for text in key_columns:
        topic, column = parse_setting(text)
        if not column:
            raise typer.BadParameter(f"{text!r:.120} names no column; write TOPIC=NAME")
        found[topic] = TopicOptions(key_column=column)
    for topic in debezium:
        found[topic] = replace(found.get(topic, TopicOptions()), is_debezium=True)
    return found


class FeedMaker:
    """Makes the feed of a topic when somebody asks for the first shape of it."""

    def __init__(
        self,
        place: "Store | ServerAddress",
        topics: Mapping[str, TopicOptions],
        directory: str,
        *,
        files: FileSystem,
        clock: Clock,
    ) -> None:
        self._place = place
        self._topics = topics
        self._directory = directory
        self._files = files
        self._clock = clock

    def make(self, topic: str) -> TopicFeed:
        """Raises NotFound where there is no such topic."""
        if topic in _INTERNAL:
            raise NotFound(f"topic {topic} is the broker's own: it has no shapes")
        options = self._topics.get(topic, TopicOptions())
        source, open_state = self._source(topic)
        try:
            source.partition_count()
        except InvalidRequest as error:
            # Names that no topic can have are refused in other words than those of none.
            source.close()
            raise NotFound(f"there is no topic {topic!r:.260}") from error
        except BaseException:
            source.close()
            raise
        return TopicFeed(
            source,
            _make_decoder(options),
            open_state,
            directory=self._directory,
            fs=self._files,
            clock=self._clock,
            signature=options.signature,
        )

    def _source(self, topic: str) -> tuple[TopicSource, OpenState]:
        """Where records come from, and how the latest of each key are found at first."""
        wait = time.sleep  # noqa: TID251, a command waits in real time
        if isinstance(self._place, Store):
            store, embedded = self._place, EmbeddedSource(self._place, topic, wait=wait)
            return embedded, lambda: KeyIndexState(store, embedded)
        server = ServerSource(self._place, topic, wait=wait)
        return server, lambda: ReplayState(server)


def _make_decoder(options: TopicOptions) -> Decoder:
    if options.is_debezium:
        return DebeziumDecoder(options.key_column)
    return PlainDecoder(options.key_column)
