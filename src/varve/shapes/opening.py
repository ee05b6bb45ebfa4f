"""Opens an engine of shapes over an open store or a Kafka cluster.

Layout     <directory>/tables holds the rows of each topic; the rest is the engine's.
Threads    the engine has threads of its own until the block ends.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from random import Random
from typing import Final

from varve.disk import RealFileSystem
from varve.embedded import Store
from varve.foundation.clock import SystemClock
from varve.foundation.errors import InvalidRequest
from varve.kafka_client.address import BOOTSTRAP, ClusterAddress, parse_cluster_address
from varve.shapes.engine import ShapeEngine
from varve.shapes.feed.open_feed import FeedFactory, TopicOptions
from varve.shapes.settings import CompactionSettings, EngineSettings

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
        ShapeEngine.open(
            root,
            feeds.make,
            fs=RealFileSystem(),
            clock=SystemClock(),
            random=Random(),
            settings=settings,
            compaction=compaction,
        ) as engine,
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
