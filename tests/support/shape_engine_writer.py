"""A process that writes a topic, runs an engine of shapes over it and follows one, to be killed.

It prints what its client has as JSON lines. Usage: python -m ... PATH
"""

import json
import sys
from pathlib import Path

from tests.support.shape_engine import Follower, Stage
from varve.foundation.clock import SystemClock
from varve.shapes.settings import CompactionSettings, EngineSettings

SETTINGS = EngineSettings(fetch_wait_ms=2, checkpoint_ms=5, chunk_bytes=5000)
COMPACTION = CompactionSettings(keep_chunks=0, min_cleanable_ratio=0.0)
TOPIC = "t"
WHERE = "n >= 20"


def open_stage(path: Path, *, maintain: bool) -> Stage:
    return Stage(
        path,
        settings=SETTINGS,
        compaction=COMPACTION,
        clock=SystemClock(),
        maintain=maintain,
    )


def main(path: Path) -> None:
    stage = open_stage(path, maintain=True)
    stage.store.create_topic(TOPIC, exist_ok=True)
    client = Follower(stage, TOPIC, where=WHERE)
    number = 0
    while True:
        number += 1
        value = None if number % 7 == 0 else {"n": number % 50}
        stage.put(TOPIC, f"k{number % 23}", value)
        client.step()
        if number % 100 == 0:
            shape = stage.engine.find(client.handle or "")
            if shape is not None and shape.is_snapshot_complete:
                stage.engine.compact(shape)
        told = {"handle": client.handle, "offset": str(client.offset), "rows": client.rows}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
