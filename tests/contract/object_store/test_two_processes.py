"""Two processes that create the same objects at once: each object has one creator."""

import json
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import create_racer
from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.settings import GivenValue
from varve.object_store import open_object_store

NAMES = ("left", "right")


def _start(url: str, settings: dict[str, GivenValue], name: str, count: int) -> "Racer":
    return subprocess.Popen(
        [sys.executable, create_racer.__file__, url, json.dumps(settings), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


Racer = subprocess.Popen[str]


def _race(url: str, settings: dict[str, GivenValue], count: int) -> dict[str, list[int]]:
    racers = {name: _start(url, settings, name, count) for name in NAMES}
    try:
        for racer in racers.values():
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers.values():
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        return {
            name: json.loads(racer.communicate(timeout=60)[0]) for name, racer in racers.items()
        }
    finally:
        for racer in racers.values():
            racer.kill()
            racer.communicate()


@pytest.mark.parametrize(("kind", "count"), [("directory", 200), ("s3", 50)])
def test_each_object_is_created_by_one_of_two_processes(
    kind: str, count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, settings = f"file://{tmp_path}", {}
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        url, settings = f"s3://{BUCKET}/{secrets.token_hex(8)}", s3.settings
    won = _race(url, settings, count)
    assert sorted(won["left"] + won["right"]) == list(range(count))
    store = open_object_store(url, settings)
    for name, numbers in won.items():
        for number in numbers:
            assert store.get(f"race/{number}") == f"{name} {number}".encode()
