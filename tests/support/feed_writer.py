"""A process that feeds a table from a topic of known records, until it is killed.

Prints a line for each checkpoint that it asks for, and one for each that is done.
"""

import random
import sys
from typing import Final

from tests.support.feed_bench import build_feed
from tests.support.memory_topic import MemoryTopic
from varve.shapes.feed.initial_load import FullScan
from varve.shapes.feed.topic_feed import TopicFeed

RECORD_COUNT: Final = 800
PARTITIONS: Final = 2


def make_source(seed: int) -> MemoryTopic:
    """A topic of the seed's records."""
    source = MemoryTopic(partitions=PARTITIONS, batch_records=20)
    chosen = random.Random(seed)
    for number in range(RECORD_COUNT):
        key = chosen.randrange(50)
        value = None if chosen.random() < 0.2 else b'{"n":%d}' % number
        source.append(key % PARTITIONS, b"%d" % key, value)
    return source


def make_feed(source: MemoryTopic, directory: str) -> TopicFeed:
    empty = MemoryTopic(partitions=PARTITIONS)
    # It begins with nothing, so that all is fed.
    return build_feed(source, directory, rows=lambda reader: FullScan(empty))


def main(directory: str, seed: int) -> None:
    feed = make_feed(make_source(seed), directory)
    feed.open()
    while True:
        feed.poll(max_records=7, wait_ms=0)
        mark = feed.mark()
        print("asked", feed.position.tx, flush=True)
        feed.checkpoint(mark)
        print("done", feed.position.tx, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
