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
from varve.shapes.feed.decoder import Decoder
from varve.shapes.feed.embedded_source import EmbeddedSource
from varve.shapes.feed.plain_decoder import PlainDecoder
from varve.shapes.feed.replay_state import ReplayState
from varve.shapes.feed.source import TopicSource
from varve.shapes.feed.topic_feed import TopicFeed

if TYPE_CHECKING:
    from varve.kafka_client.address import ServerAddress

KEY_COLUMN: Final = "key"


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """How the records of one topic are read."""

    key_column: str = KEY_COLUMN
    is_debezium: bool = False
    transactions: str | None = None
    """The topic that tells where Debezium's transactions end."""

    @property
    def signature(self) -> str:
        form = "debezium" if self.is_debezium else "plain"
        return f"{form} {self.key_column} {self.transactions or ''}".rstrip()


def parse_topics(key_columns: Sequence[str], debezium: Sequence[str]) -> dict[str, TopicOptions]:
    """What was said of single topics; raises BadParameter."""
    found: dict[str, TopicOptions] = {}
    for text in key_columns:
        topic, column = parse_setting(text)
        if not column:
            raise typer.BadParameter(f"{text!r:.120} names no column; write TOPIC=NAME")
        found[topic] = TopicOptions(key_column=column)
    for text in debezium:
        topic, _, transactions = text.partition("=")
        before = found.get(topic, TopicOptions())
        found[topic] = replace(before, is_debezium=True, transactions=transactions or None)
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
        options = self._topics.get(topic, TopicOptions())
        source = self._source(topic)
        return TopicFeed(
            source,
            self._decoder(options),
            lambda: ReplayState(source),
            directory=self._directory,
            fs=self._files,
            clock=self._clock,
            signature=options.signature,
        )

    def _source(self, topic: str) -> TopicSource:
        if isinstance(self._place, Store):
            return EmbeddedSource(self._place, topic, wait=time.sleep)  # noqa: TID251, real time
        from varve.shapes.feed.server_source import ServerSource

        return ServerSource(self._place, topic, wait=time.sleep)  # noqa: TID251

    def _decoder(self, options: TopicOptions) -> Decoder:
        return PlainDecoder(options.key_column)
