"""Files of tasks leave with them, and those of killed ones with the next task."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from varve.jobs.tier.remote_files import scratch, sweep_scratch


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_it_leaves_with_its_task_and_no_other_takes_it(place: Path) -> None:
    (place / "varve-other").mkdir()
    with scratch() as first, scratch() as second:
        sweep_scratch()
        (Path(first) / "log").write_bytes(b"ann")
        assert Path(second).is_dir()
    assert [one.name for one in place.iterdir()] == ["varve-other"]


def test_what_a_killed_task_left_goes_with_the_next(place: Path) -> None:
    code = (
        "import os, signal, tempfile; from varve.jobs.tier.remote_files import scratch\n"
        "with scratch() as path:\n"
        "    open(f'{path}/log', 'w').write('ann')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    env = {**os.environ, "TMPDIR": str(place)}
    ended = subprocess.run([sys.executable, "-c", code], env=env, check=False)
    assert ended.returncode == -signal.SIGKILL
    (left,) = place.iterdir()
    assert (left / "log").read_text() == "ann"
    with scratch() as path:
        assert [str(one) for one in place.iterdir()] == [path]
