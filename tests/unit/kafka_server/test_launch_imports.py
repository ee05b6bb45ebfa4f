"""What `varve serve` does not wait for when it starts."""

import subprocess
import sys

import pytest

from varve.kernels import hashes

_NOT_AT_THE_START = (
    "cryptography",
    "obstore",
    "pyarrow",
    "pydantic",
    "varve.cleaning.audit",
    "varve.cleaning.forecast",
    "varve.tiering.tier",
)
_SHOW_IMPORTED = f"""
import sys
import varve.kafka_server.launch, varve.kafka_server.config
print([name for name in {_NOT_AT_THE_START!r} if name in sys.modules])
from varve.kernels import hashes as murmur2
murmur2.warm()
print("numba.cpython.unicode" in sys.modules)
"""


@pytest.fixture(scope="module")
def shown() -> list[str]:
    """What a new interpreter imports, and whether it loads the compiler for a kernel."""
    hashes.warm()  # so that the kernel is in the cache
    command = [sys.executable, "-c", _SHOW_IMPORTED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_serving_imports_nothing_that_only_some_servers_need(shown: list[str]) -> None:
    assert shown[0] == "[]"


def test_a_kernel_in_the_cache_is_loaded_without_the_compiler(shown: list[str]) -> None:
    assert shown[1] == "False"
