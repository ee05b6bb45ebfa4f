"""The event loop reads no files: while it does, no other client is served."""

import asyncio
import threading
from pathlib import Path

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage
from tests.support.shape_engine_http import open_http
from varve.disk import RealFileSystem
from varve.disk.real import RealFile
from varve.foundation.clock import SystemClock
from varve.shapes.offset import BEFORE_ALL


class _WatchedFiles(RealFileSystem):
    """Remembers the files that each thread opens."""

    def __init__(self) -> None:
        super().__init__()
        self.opened: dict[str, list[str]] = {}

    def open(self, path: str) -> RealFile:
        self.opened.setdefault(threading.current_thread().name, []).append(path)
        return super().open(path)


def test_a_new_client_of_a_compacted_shape_reads_no_file_on_the_loop() -> None:
    with memory_directory() as path:
        _follow_compacted_shape(path)


def _follow_compacted_shape(path: Path) -> None:
    files = _WatchedFiles()
    stage = Stage(path, files=files, clock=SystemClock())
    stage.store.create_topic("items")
    shape = stage.create("items")
    for number in range(20):
        stage.put("items", "a", {"n": number})
    stage.settle("items")
    stage.engine.checkpoint_now()
    stage.engine.compact(shape)
    files.opened.clear()

    async def follow() -> list[str]:
        messages: list[str] = []
        async with open_http(stage) as http:
            offset = str(BEFORE_ALL)
            for _ in range(10):
                answer = await http.get(table="items", offset=offset, handle=shape.handle)
                assert answer.status_code == 200
                messages += [one["headers"].get("operation", "control") for one in answer.json()]
                offset = answer.headers["electric-offset"]
                if "electric-up-to-date" in answer.headers:
                    return messages
        raise AssertionError("the shape has no end")

    assert "update" in asyncio.run(follow())
    assert files.opened, "files are read, by other threads"
    assert threading.current_thread().name not in files.opened
    stage.close()
