"""What holds for all tests: how long they search, where they write, in which order they begin."""

import gc
import os
import signal
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support.forked_commands import CommandServers
from tests.support.memory_directory import SHARED_MEMORY, has_room_for_all
from tests.support.rounds import EXAMPLES_LONG, IS_LONG
from tests.support.scheduling import DurationRecorder, FileScheduling, sort_longest_first

# Kernels compile during the first example, and machines are busy: none fails for its time. The
# examples of `make test` are the same each time; those of the long rounds are drawn anew.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=(HealthCheck.too_slow,)
)
settings.register_profile(
    "long", settings.get_profile("default"), derandomize=False, max_examples=EXAMPLES_LONG
)
settings.load_profile("long" if IS_LONG else "default")

# A test waits for no disk unless that is its subject: `tmp_path` is in memory where there is room.
if has_room_for_all():
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(SHARED_MEMORY))

# A shell that runs the tests in the background lets them, and what they start, ignore interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def rounds_factor() -> int:
    """What a test that counts its own rounds multiplies them with."""
    return 50 if IS_LONG else 1


@pytest.fixture(scope="session")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandServers]:
    """One for all tests of a worker: to import everything takes seconds."""
    with CommandServers(tmp_path_factory.mktemp("commands"), with_spark=False) as running:
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing that is collected is garbage, and to look for it would take a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    sort_longest_first(items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FileScheduling:
    config.option.loadscopereorder = False
    return FileScheduling(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--record-durations", action="store_true", help="write tests/durations.json anew"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--record-durations"):
        config.pluginmanager.register(DurationRecorder())
