"""Forks deduplications that are killed; says how far they have come.

Each line of input, `place state seed`, makes one: `place` is a log directory or `host:port`.
It prints `pid <its pid>`, then `at <partition> <position>` for every commit, and `done` when it has
taken all there is and has ended in order. After its end: `dead`.
"""

import os
import random
import sys
import traceback

import varve
from tests.support.dedup_cases import NOW_MS, OUTPUT, SIDE, SOURCE, rules_of
from varve.dedup.processor import Deduplicator
from varve.dedup.task import TaskSettings, TaskState
from varve.foundation.clock import ManualClock
from varve.kafka_client.address import parse_cluster_address

RULES = rules_of()


def tell(state: TaskState) -> None:
    print("at", state.partition, state.position, flush=True)


def run(place: str, state: str, seed: int) -> None:
    source = random.Random(seed)
    settings = TaskSettings(
        chunk_bytes=source.choice([1, 2_000, 20_000]),
        checkpoint_entries=source.choice([1, 50, 1_000_000]),
    )
    address = parse_cluster_address({"bootstrap.servers": place}) if ":" in place else None
    store = None if address is not None else varve.open(place, maintain=False)
    opened = address or store
    assert opened is not None
    with Deduplicator.open(
        opened,
        SOURCE,
        OUTPUT,
        RULES,
        side=SIDE,
        state=state,
        settings=settings,
        clock=ManualClock(NOW_MS),
        on_progress=tell,
    ) as dedup:
        dedup.run_once()
    if store is not None:
        store.close()
    print("done", flush=True)


def main() -> None:
    for line in sys.stdin:
        place, state, seed = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                print("pid", os.getpid(), flush=True)
                run(place, state, int(seed))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.waitpid(pid, 0)
        print("\ndead", flush=True)


if __name__ == "__main__":
    main()
