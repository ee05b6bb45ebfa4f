"""franz-go, a client of Kafka in Go: our program on it, built once, run against a server."""

import hashlib
import subprocess
from pathlib import Path
from typing import Final

from tests.conformance.tools.go_programs import build_program, cached_program

SOURCES: Final = Path(__file__).parent / "go" / "franz"
SCENARIOS: Final = ("codecs", "classic", "consumer", "transactions", "fencing", "admin")
RUN_SECONDS: Final = 90


class FranzFailed(Exception):
    """A scenario went wrong; the message is what the program said."""


def build_franz() -> Path:
    """The program, built now unless it was before."""
    digest = hashlib.sha256()
    for path in sorted(SOURCES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    target = cached_program(f"franz-{digest.hexdigest()[:16]}", "franz")
    return build_program(target, ["."], directory=SOURCES, release="1.26")


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
