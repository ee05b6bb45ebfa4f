"""A killed engine: who followed a shape goes on from where it was, and misses nothing.

Carries S1 and S4.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_directory import memory_directory
from tests.support.shape_engine import Follower
from tests.support.shape_engine_writer import TOPIC, WHERE, open_stage
from varve.shapes.offset import parse_offset

ROOT = Path(__file__).parents[3]


def _run_until(path: Path, line_count: int) -> dict[str, Any]:
    """Runs the writer, kills it, and gives what its client last had."""
    command = [sys.executable, "-m", "tests.support.shape_engine_writer", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        last: dict[str, Any] = {}
        try:
            for _ in range(line_count):
                last = json.loads(process.stdout.readline())
        finally:
            process.kill()
        for line in process.stdout:
            if line.endswith(b"\n"):
                last = json.loads(line)
    return last


@pytest.mark.parametrize("line_count", [40, 90, 333])
def test_a_client_goes_on_behind_a_kill(line_count: int) -> None:
    with memory_directory() as path:
        last = _run_until(path, line_count)
        stage = open_stage(path, maintain=False)
        state: dict[str, Any] = {}
        for record in stage.store.topic(TOPIC).read():
            assert record.key is not None
            state[record.key.decode()] = None if record.value is None else json.loads(record.value)
        wanted = {
            key: {"key": key, **row}
            for key, row in state.items()
            if row is not None and row["n"] >= 20
        }
        client = Follower(stage, TOPIC, where=WHERE)
        client.handle, client.rows = last["handle"], last["rows"]
        client.offset = parse_offset(last["offset"])
        assert client.catch_up() == wanted
        has_whole_snapshot = parse_offset(last["offset"]).tx > 0
        assert client.refetches == 0 or not has_whole_snapshot
        assert Follower(stage, TOPIC, where=WHERE).catch_up() == wanted
        stage.close()
