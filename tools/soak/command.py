"""The command of a soak: its options, what it tells, its exit code."""

import argparse
import json
import logging
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from tools.soak.report import Screen, show
from tools.soak.run import Result

Run = Callable[[Path, int, float, Callable[[str], None]], Result]
"""Runs a soak in a folder, by a seed, for so many seconds; the last argument gets progress."""


def _parse(module: str, description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the clients work")
    parser.add_argument("--seed", type=int, help="replays the plan of an earlier run")
    parser.add_argument("--dir", type=Path, help="an empty directory for logs; kept afterwards")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    return parser.parse_args()


def run_soak(module: str, description: str | None, run: Run) -> int:
    """Runs it as the arguments say; 1 where something was found."""
    given = _parse(module, description)
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    seconds = given.minutes * 60
    screen = Screen()
    screen.say(f"seed {seed}: {given.minutes:g} minutes")
    folder = given.dir or Path(tempfile.mkdtemp(prefix="varve-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("kafka", "aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    result = run(folder, seed, seconds, screen.progress)
    screen.end()
    if given.json:
        told = {
            "seed": seed,
            "minutes": given.minutes,
            "findings": result.findings,
            "figures": result.figures,
            "client_errors": result.client_errors,
        }
        print(json.dumps(told, indent=1))
    else:
        show(result, seed)
    if result.findings:
        screen.say(f"the directory and the server's log are kept: {folder}")
    elif given.dir is None:
        shutil.rmtree(folder)
    return 1 if result.findings else 0
