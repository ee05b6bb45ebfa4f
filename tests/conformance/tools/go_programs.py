"""Programs in Go, each built once into the user's cache.

Layout     <user's cache>/varve/<name>/<program>
Crash      a program is built aside and renamed, so a half-made one is never run.
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

BUILD_SECONDS: Final = 1800


class ProgramMissing(Exception):
    """A program is not to be had; the message says why."""


def cached_program(name: str, program: str) -> Path:
    """Where a program is when it has been built."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "varve" / name / program


def build_program(
    target: Path, arguments: Sequence[str], *, directory: Path | None = None, release: str
) -> Path:
    """Runs go with these arguments, which leaves the program in GOBIN, unless it is there."""
    if target.is_file():
        return target
    go = shutil.which("go")
    if go is None:
        raise ProgramMissing(f"go is not on PATH; install Go {release} or newer")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as aside:
        try:
            done = subprocess.run(
                [go, "install", "-trimpath", *arguments],
                cwd=directory,
                env={**os.environ, "GOBIN": aside, "CGO_ENABLED": "0"},
                capture_output=True,
                text=True,
                timeout=BUILD_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ProgramMissing(f"go install was not done after {BUILD_SECONDS} s") from error
        if done.returncode != 0:
            lines = [line for line in done.stderr.splitlines() if "go: downloading" not in line]
            raise ProgramMissing(
                f"go could not build {target.name} (is the Go module proxy within reach?): "
                f"{' '.join(lines)[-400:]}"
            )
        (Path(aside) / target.name).rename(target)
    return target
