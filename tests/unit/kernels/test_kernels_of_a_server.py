"""A server that was set up compiles nothing while it serves."""

import os
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]


def test_every_signature_on_the_paths_of_a_server_is_compiled_by_the_setup(tmp_path: Path) -> None:
    """Compiled in the loop or by the thread that appends, a kernel keeps all clients waiting."""
    walk = subprocess.run(
        [sys.executable, _ROOT / "tests" / "support" / "kernel_walk.py", tmp_path / "data"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert walk.returncode == 0, walk.stderr
    assert walk.stdout.splitlines() == []
