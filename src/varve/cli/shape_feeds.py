"""Options of `varve shape serve` that say how topics become rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from varve.disk import FileSystem
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.shapes.feed.open_feed import FeedFactory, TopicOptions

if TYPE_CHECKING:
    from varve.kafka_client.address import ClusterAddress


def parse_topics(
    key_columns: Sequence[str], debezium: Sequence[str], snapshots: Sequence[str] = ()
) -> dict[str, TopicOptions]:
    """The options of single topics; raises BadParameter."""
    topics: dict[str, TopicOptions] = {}

    def add(topic: str, **values: Any) -> None:
        topics[topic] = replace(topics.get(topic, TopicOptions()), **values)

    for topic, column in map(_parse_pair, key_columns):
        add(topic, key_column=column)
    for text in debezium:
        topic, has_more, transactions = text.partition("=")
        if not topic or (has_more and not transactions):
            raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC or TOPIC=...")
        add(topic, is_debezium=True, transactions=transactions or None)
    for topic, url in map(_parse_pair, snapshots):
        add(topic, snapshot=url)
    return topics


def _parse_pair(text: str) -> tuple[str, str]:
    topic, _, value = text.partition("=")
    if not topic or not value:
        raise typer.BadParameter(f"{text!r:.120} lacks one side; write TOPIC=...")
    return topic, value


def make_feed_factory(
    source: "Store | ClusterAddress",
    topics: Mapping[str, TopicOptions],
    directory: str,
    *,
    fs: FileSystem,
    clock: Clock,
    beside: Sequence[str] = (),
) -> FeedFactory:
    """`beside` are the log directories of the broker, where they are on this machine."""
    if not beside and all(options.snapshot is None for options in topics.values()):
        return FeedFactory(source, topics, directory, fs=fs, clock=clock)
    # Imported before there are threads: feeds that import pyarrow at once block each other.
    from varve.cli.shape_rows import BrokerFileRows, open_snapshot_rows

    return FeedFactory(
        source,
        topics,
        directory,
        fs=fs,
        clock=clock,
        open_snapshot=partial(open_snapshot_rows, clock=clock),
        open_files=partial(BrokerFileRows, directories=beside) if beside else None,
    )
