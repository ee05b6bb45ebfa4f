"""Clients read, a feed writes and compactions run at the same time: every client has all rows.

Carries S1.
"""

import threading
from collections.abc import Callable

from tests.support.compaction_bench import CompactionBench
from tests.support.shape_messages import State, apply_message, read_messages
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.shapes.compaction.compactor import Compactor
from varve.shapes.offset import SNAPSHOT_END
from varve.shapes.settings import CompactionSettings, StorageSettings

COMPACTIONS = 6
READERS = 3


def test_clients_beside_a_feed_and_compactions_end_with_the_rows() -> None:
    bench = CompactionBench(
        MemoryFileSystem(ManualClock()),
        storage_settings=StorageSettings(chunk_bytes=6000, buffer_bytes=900, read_bytes=2000),
    )
    settings = CompactionSettings(
        keep_chunks=0, min_cleanable_ratio=0, min_bytes=2000, memory_bytes=16384
    )
    bench.compactor = Compactor(settings, bench.random)
    is_written, compacted = threading.Event(), threading.Event()
    errors: list[BaseException] = []
    counts = {"compactions": 0, "beginnings": 0}

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)
            is_written.set()

    def write() -> None:
        for number in range(1, 10 * COMPACTIONS + 1):
            bench.change(20, keys=12)
            # Writing goes on beside a compaction, ten turns for each.
            while counts["compactions"] < number // 10 and not errors:
                compacted.wait(1)
                compacted.clear()
        is_written.set()

    def compact() -> None:
        while not is_written.is_set():
            bench.compact(is_forced=counts["compactions"] % 2 == 0)
            counts["compactions"] += 1
            compacted.set()

    def follow() -> None:
        is_last_round = False
        while not is_last_round:
            is_last_round = is_written.is_set()
            place, state = SNAPSHOT_END, State()
            counts["beginnings"] += 1
            while place < bench.storage.latest:
                end = bench.storage.chunk_end(place) or bench.storage.latest
                for message in read_messages(bench.storage, place, end):
                    apply_message(state, message)
                place = end
            if is_last_round:
                assert state == bench.state

    threads = [
        threading.Thread(target=run, args=(work,)) for work in (write, compact, *[follow] * READERS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert errors == []
    assert counts["compactions"] >= COMPACTIONS
    assert counts["beginnings"] > READERS
    bench.check(sample=30)
