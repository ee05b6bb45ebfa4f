"""The process that `varve demo` kills: appends the stream and prints what is acknowledged.

Usage: python -m varve.cli.demo_writer DIRECTORY SEED RECORDS

Each line gives how many records are in, and the log end offset of each partition.
"""

import sys
from collections.abc import Sequence

import varve
from varve.cli.demo_stream import BLOCK_RECORDS, PARTITION_COUNT, SETTINGS, TOPIC, record_at


def main(arguments: Sequence[str]) -> None:
    directory, seed, record_count = arguments[0], int(arguments[1]), int(arguments[2])
    with varve.open(directory) as store:
        topic = store.create_topic(TOPIC, partitions=PARTITION_COUNT, settings=SETTINGS)
        end_offsets = dict.fromkeys(range(PARTITION_COUNT), 0)
        for start in range(0, record_count, BLOCK_RECORDS):
            end = min(start + BLOCK_RECORDS, record_count)
            block = [record_at(seed, number) for number in range(start, end)]
            end_offsets.update(topic.append_many(block, codec="none").end_offsets)
            print(end, *end_offsets.values(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
