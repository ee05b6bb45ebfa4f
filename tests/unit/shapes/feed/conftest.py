"""What tests of feeds share."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.feed_bench import BenchMaker, FeedBench


@pytest.fixture
def make_bench(tmp_path: Path) -> Iterator[BenchMaker]:
    """Makes a bench, and closes it in the end."""
    with ExitStack() as stack:

        def make(**options: Any) -> FeedBench:
            return stack.enter_context(closing(FeedBench(tmp_path, **options)))

        yield make


@pytest.fixture
def bench(make_bench: BenchMaker) -> FeedBench:
    return make_bench()
