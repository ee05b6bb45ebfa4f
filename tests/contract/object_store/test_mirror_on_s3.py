"""A mirror of two S3 servers, of which one is not there when it is opened."""

import secrets
import socket
from collections.abc import Iterator

import pytest

from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.errors import StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.object_store import MirroredObjectStore, RetryPolicy, open_mirrored, open_object_store
from varve.object_store import opening as mirror_opening


@pytest.fixture
def away(s3: S3Server) -> Iterator[dict[str, GivenValue]]:
    """The settings of a server whose port refuses connections."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield {**s3.settings, "endpoint": f"http://127.0.0.1:{held.getsockname()[1]}"}


@pytest.fixture(autouse=True)
def _quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = RetryPolicy(attempt_count_max=2, first_wait_ms=1)
    monkeypatch.setattr(mirror_opening, "SIDE_RETRIES", policy)


def _open(
    url: str, first: dict[str, GivenValue], second: dict[str, GivenValue]
) -> MirroredObjectStore:
    return open_mirrored(url, url, settings=first, second_settings=second)


def test_reads_come_from_the_second_before_the_first_was_ever_reached(
    s3: S3Server, away: dict[str, GivenValue]
) -> None:
    url = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    open_object_store(url, s3.settings).put("a/b", b"1")
    mirror = _open(url, away, s3.settings)
    assert mirror.get("a/b") == b"1"
    assert [info.key for info in mirror.list("")] == ["a/b"]
    assert mirror.list_directories("") == ["a"]
    with pytest.raises(StoreUnavailable, match="tried 2 times"):
        mirror.put("c", b"2")
    assert "reads go to s3://" in mirror.trouble()


def test_writes_go_on_without_a_second_that_was_never_reached(
    s3: S3Server, away: dict[str, GivenValue]
) -> None:
    url = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    mirror = _open(url, s3.settings, away)
    mirror.create("a", b"1")
    assert mirror.get("a") == b"1"
    assert mirror.status().missing == ("a",)
    elsewhere = f"{url}-elsewhere"
    reached = open_mirrored(url, elsewhere, settings=s3.settings, second_settings=s3.settings)
    assert reached.repair_differences(reached.compare().differences).copied == ("a",)
    assert open_object_store(elsewhere, s3.settings).get("a") == b"1"
