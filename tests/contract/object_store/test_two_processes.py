"""Two processes that create the same objects at once: each object has one creator."""

import json
import secrets
from pathlib import Path

import pytest

from tests.support.racing import race
from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.settings import GivenValue
from varve.object_store import open_object_store

NAMES = ("left", "right")


def race_to_create(url: str, settings: dict[str, GivenValue], count: int) -> None:
    """Two processes create the same objects; checks that each has one creator, whose it is."""
    rows = [(url, json.dumps(settings), name, str(count)) for name in NAMES]
    printed = race("tests.support.create_racer", rows, timeout_seconds=120)
    won = dict(zip(NAMES, map(json.loads, printed), strict=True))
    assert sorted(won["left"] + won["right"]) == list(range(count))
    store = open_object_store(url, settings)
    for name, numbers in won.items():
        for number in numbers:
            assert store.get(f"race/{number}") == f"{name} {number}".encode()


@pytest.mark.parametrize(("kind", "count"), [("directory", 200), ("s3", 50)])
def test_each_object_is_created_by_one_of_two_processes(
    kind: str, count: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url, settings = f"file://{tmp_path}", {}
    if kind == "s3":
        s3: S3Server = request.getfixturevalue("s3")
        url, settings = f"s3://{BUCKET}/{secrets.token_hex(8)}", s3.settings
    race_to_create(url, settings, count)
