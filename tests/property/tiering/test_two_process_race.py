"""Two processes commit to one manifest at once, over a store that also loses and doubles requests
and answers: no update is lost, none is there twice, and the chain has no hole."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.manifest_race import race_to_commit, race_with_a_kill
from tests.support.memory_directory import memory_directory
from tests.support.s3_server import BUCKET, s3_server


@pytest.fixture
def url() -> Iterator[str]:
    """In memory, so that the racers meet more often."""
    with memory_directory() as path:
        yield f"file://{path}"


def test_no_commit_is_lost_or_doubled_in_a_directory(url: str, rounds_factor: int) -> None:
    race_to_commit(url, {}, rounds=30 * rounds_factor, timeout_seconds=200 * rounds_factor)


def test_no_commit_is_lost_or_doubled_on_s3(rounds_factor: int) -> None:
    with s3_server() as server:
        place = f"s3://{BUCKET}/{secrets.token_hex(8)}"
        race_to_commit(
            place, server.settings, rounds=12 * rounds_factor, timeout_seconds=200 * rounds_factor
        )


def test_a_killed_writer_leaves_a_chain_that_the_other_goes_on_with(url: str) -> None:
    race_with_a_kill(url, {}, rounds=12, killed_after=11)
