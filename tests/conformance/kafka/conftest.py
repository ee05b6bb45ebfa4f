"""Apache Kafka's log without a broker, and a directory in memory for it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.tools.recovery import LOG_SHELL
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import Toolchain

pytest.register_assert_rewrite("tests.contract.topics.test_topics_contract")

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture(scope="module")
def kafka_log(toolchain: Toolchain) -> Iterator[JavaShell]:
    """Apache Kafka's record code and partition log, without a broker."""
    with JavaShell(toolchain, LOG_SHELL) as shell:
        yield shell


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A directory in memory where there is one: what is compared here never loses power."""
    is_usable = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY if is_usable else None) as path:
        yield Path(path)
