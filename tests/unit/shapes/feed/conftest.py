"""What tests of feeds share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.feed_bench import FeedBench


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[FeedBench]:
    created = FeedBench(tmp_path)
    yield created
    created.close()
