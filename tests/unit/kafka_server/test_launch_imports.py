"""What `varve serve` does not wait for when it starts."""

import subprocess
import sys

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
"""
_SHOW_COMPILER = """
import sys
from varve.kernels import hashes as murmur2
murmur2.warm()
print("numba.cpython.unicode" in sys.modules)
"""


def _run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_serving_imports_nothing_that_only_some_servers_need() -> None:
    assert _run(_SHOW_IMPORTED) == "[]"


def test_a_kernel_in_the_cache_is_loaded_without_the_compiler() -> None:
    # The first one may have to compile it.
    _run(_SHOW_COMPILER)
    assert _run(_SHOW_COMPILER) == "False"
