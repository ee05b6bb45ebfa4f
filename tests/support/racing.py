"""Processes that begin at the same time and compete: each says "ready" and waits for a line."""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

Racer = subprocess.Popen[str]

ROOT = Path(__file__).parents[2]


@contextmanager
def racing(module: str, arguments: Sequence[Sequence[str]]) -> Iterator[list[Racer]]:
    """Starts one racer for each row of arguments, all at once; those that still run are killed."""
    racers: list[Racer] = []
    try:
        for row in arguments:
            racers.append(
                subprocess.Popen(
                    [sys.executable, "-m", module, *row],
                    cwd=ROOT,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "ready\n"
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.write("go\n")
            racer.stdin.flush()
        yield racers
    finally:
        for racer in racers:
            racer.kill()
            racer.communicate()


def race(module: str, arguments: Sequence[Sequence[str]], *, timeout_seconds: float) -> list[str]:
    """What the racers printed after the start; fails when one of them did."""
    with racing(module, arguments) as racers:
        printed = [racer.communicate(timeout=timeout_seconds)[0] for racer in racers]
        assert [racer.returncode for racer in racers] == [0] * len(racers)
    return printed
