"""franz-go, a client of Kafka in Go: our program on it, built once, run against a server.

Layout     <user's cache>/varve/franz-<digest of the sources>/franz
Crash      the program is built aside and renamed, so a half-made one is never run.
"""

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent / "go" / "franz"
SCENARIOS: Final = ("codecs", "classic", "consumer", "transactions", "fencing", "admin")
BUILD_SECONDS: Final = 900
RUN_SECONDS: Final = 90


class FranzMissing(Exception):
    """The program is not to be had; the message says why."""


class FranzFailed(Exception):
    """A scenario went wrong; the message is what the program said."""


def build_franz() -> Path:
    """The program, built now unless it was before."""
    cache = _find_cache()
    program = cache / "franz"
    if program.is_file():
        return program
    go = shutil.which("go")
    if go is None:
        raise FranzMissing("go is not on PATH; install Go 1.26 or newer")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as aside:
        _run_go(go, Path(aside) / "franz")
        (Path(aside) / "franz").rename(program)
    return program


def run_scenario(program: Path, address: str, scenario: str, name: str) -> None:
    """One of `SCENARIOS` against a server, with a name for what it makes there."""
    try:
        done = subprocess.run(
            [program, address, scenario, name],
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FranzFailed(f"{scenario}: no end after {RUN_SECONDS} s") from error
    if done.returncode != 0:
        raise FranzFailed(f"{scenario}: {done.stdout}{done.stderr}")


def _find_cache() -> Path:
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "varve" / f"franz-{digest.hexdigest()[:16]}"


def _run_go(go: str, program: Path) -> None:
    try:
        done = subprocess.run(
            [go, "build", "-trimpath", "-o", program, "."],
            cwd=SOURCES,
            env={**os.environ, "CGO_ENABLED": "0"},
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise FranzMissing(f"go build was not done after {BUILD_SECONDS} s") from error
    if done.returncode != 0:
        raise FranzMissing(
            "go could not build the program on franz-go (is the Go module proxy within reach?): "
            f"{done.stderr.strip()[-400:]}"
        )
