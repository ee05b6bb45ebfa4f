"""Appends until it is killed and prints what was acknowledged; arguments: path, flush, seed."""

import hashlib
import random
import sys

from varve.commit_log import LogSettings, LogStore, TopicPartition
from varve.commit_log.partition_metadata import random_topic_id
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.records import Codec, Record, assign_offsets, build_batch


def main(path: str, flush: str, seed: int) -> None:
    source = random.Random(seed)
    settings = LogSettings(segment_bytes=20_000, index_interval_bytes=500, flush=flush)
    store = LogStore(
        [path],
        fs=RealFileSystem(),
        clock=SystemClock(),
        random=source,
        topic_settings=lambda topic: settings,
    ).open()
    log = store.create(TopicPartition("orders", 0), random_topic_id(random.Random(1)))
    while True:
        records = [
            Record(key=b"k%d" % at, value=source.randbytes(source.randrange(300)), timestamp=at)
            for at in range(source.randint(1, 5))
        ]
        batch = build_batch(records, codec=source.choice([Codec.NONE, Codec.ZSTD]))
        offset = log.append(batch).base_offset
        stored = bytes(assign_offsets(batch, offset, 0))
        print(offset, hashlib.sha256(stored).hexdigest(), flush=True)
        if source.random() < 0.02:
            log.roll()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
