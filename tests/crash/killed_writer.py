"""Forks writers that append until they are killed; says what was acknowledged.

Each line of input, `path flush seed`, makes a writer. It prints `pid <its pid>`, then a line per
acknowledged batch: base offset and digest of the stored bytes. After its end: `dead`.
"""

import hashlib
import os
import random
import sys

from varve.commit_log import LogManager, LogSettings, TopicPartition
from varve.commit_log.directory_files import random_topic_id
from varve.disk import RealFileSystem
from varve.foundation.clock import SystemClock
from varve.records import Codec, Record, build_batch, edit_batch


def write(path: str, flush: str, seed: int) -> None:
    source = random.Random(seed)
    settings = LogSettings(segment_bytes=20_000, index_interval_bytes=500, flush=flush)
    store = LogManager(
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
        stored = bytes(edit_batch(batch, base_offset=offset, leader_epoch=0))
        print(offset, hashlib.sha256(stored).hexdigest(), flush=True)
        if source.random() < 0.02:
            log.roll()


def main() -> None:
    for line in sys.stdin:
        path, flush, seed = line.split()
        pid = os.fork()
        if pid == 0:
            print("pid", os.getpid(), flush=True)
            write(path, flush, int(seed))
        os.waitpid(pid, 0)
        print("\ndead", flush=True)


if __name__ == "__main__":
    main()
