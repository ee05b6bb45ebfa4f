"""Who asks for a shape of a topic that cannot be read is told why, and soon."""

import asyncio
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import httpx

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Stage
from tests.support.shape_engine_http import open_http, open_stage

SOON_SECONDS: Final = 10.0


def _damage(path: Path) -> None:
    (log,) = (path / "store" / "t-0").glob("*.log")
    data = bytearray(log.read_bytes())
    data[-3] ^= 1
    log.write_bytes(data)


def _remove(path: Path) -> None:
    shutil.rmtree(path / "store" / "t-0")


async def _ask(stage: Stage) -> httpx.Response:
    async with open_http(stage) as http:
        return await http.get()


def _ask_after(harm: Callable[[Path], None]) -> httpx.Response:
    with memory_directory() as path:
        stage = open_stage(path)
        stage.store.create_topic("t")
        for number in range(20):
            stage.put("t", f"k{number}", {"n": number})
        stage.close()
        harm(path)
        stage = open_stage(path)
        began = time.monotonic()
        answer = asyncio.run(_ask(stage))
        assert time.monotonic() - began < SOON_SECONDS
        assert stage.engine.health() == "waiting"
        assert len(stage.engine.shapes()) == 1, "it waits for its snapshot"
        stage.close()
        return answer


def test_a_damaged_record_is_named() -> None:
    answer = _ask_after(_damage)
    assert answer.status_code == 503
    assert "t-0" in answer.json()["message"]
    assert "CRC" in answer.json()["message"]


def test_a_partition_that_is_missing_is_named() -> None:
    answer = _ask_after(_remove)
    assert answer.status_code == 503
    assert "lacks a partition" in answer.json()["message"]
    assert "t-0" in answer.json()["message"]
