"""The end of an engine: what is under way is over before the directory is let go."""

import threading
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.shape_engine import Stage
from varve.disk import RealFileSystem
from varve.foundation.errors import Closed, Unavailable
from varve.shapes.compaction import compact
from varve.shapes.compaction.block import Block
from varve.shapes.compaction.compact import Compactor
from varve.shapes.compaction.parts import compact_ranges
from varve.shapes.engine import LOCK_FILE

PATIENCE_SECONDS = 20.0


@pytest.mark.parametrize("is_crash", [False, True])
def test_a_compaction_ends_before_the_directory_is_let_go(
    stage: Stage, path: Path, monkeypatch: pytest.MonkeyPatch, is_crash: bool
) -> None:
    begun, joining, leave = (threading.Event() for _ in range(3))
    join = Compactor.join

    def compact_slowly(*given: Any, **options: Any) -> Generator[Block]:
        begun.set()
        assert leave.wait(PATIENCE_SECONDS)
        yield from compact_ranges(*given, **options)

    def tell_and_join(compactor: Compactor) -> None:
        joining.set()
        join(compactor)

    monkeypatch.setattr(compact, "compact_ranges", compact_slowly)
    monkeypatch.setattr(Compactor, "join", tell_and_join)
    shape = stage.create("items")
    for number in range(20):
        stage.put("items", "1", {"n": number})
    stage.settle("items")
    end = stage.engine.abandon if is_crash else stage.engine.close
    lock = f"{stage.engine.root}/{LOCK_FILE}"
    with ThreadPoolExecutor(2) as pool:
        compacting = pool.submit(stage.engine.compact, shape)
        assert begun.wait(PATIENCE_SECONDS)
        closing = pool.submit(end)
        assert joining.wait(PATIENCE_SECONDS)
        with pytest.raises(Unavailable):
            RealFileSystem().lock(lock)
        leave.set()
        with pytest.raises(Closed, match="compacted no more"):
            compacting.result(PATIENCE_SECONDS)
        closing.result(PATIENCE_SECONDS)
    RealFileSystem().lock(lock).release()
