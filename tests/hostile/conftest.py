"""A server per module, with honest things that must stay as they are."""

from collections.abc import Iterator

import pytest

from tests.support.hostile_bench import HostileBench


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileBench]:
    with HostileBench(tmp_path_factory.mktemp("hostile")) as bench:
        yield bench
