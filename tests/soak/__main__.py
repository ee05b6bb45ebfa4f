"""`make soak`: a server under load that is killed and restarted, against a model.

python -m tests.soak [--minutes 30] [--seed N] [--dir DIR] [--json]
"""

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.soak.plan import make_plan
from tests.soak.report import Screen, show
from tests.soak.run import Soak

_SHOWN_ACTIONS: Final = 8


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long the clients work")
    parser.add_argument("--seed", type=int, help="replays the plan of an earlier run")
    parser.add_argument("--dir", type=Path, help="an empty directory for logs; kept afterwards")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")
    return parser.parse_args()


def main() -> int:
    given = _parse()
    seed = random.SystemRandom().getrandbits(32) if given.seed is None else given.seed
    seconds = given.minutes * 60
    plan = make_plan(seed, seconds)
    screen = Screen()
    screen.say(f"seed {seed}: {len(plan)} actions in {given.minutes:g} minutes")
    for action in plan[:_SHOWN_ACTIONS]:
        screen.say(f"  {action.at_seconds:7.1f} s  {action.deed}")
    if len(plan) > _SHOWN_ACTIONS:
        screen.say(f"  and {len(plan) - _SHOWN_ACTIONS} more")
    folder = given.dir or Path(tempfile.mkdtemp(prefix="varve-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("kafka", "aiokafka", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    result = Soak(folder, seed, screen.progress).run(plan, seconds)
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


if __name__ == "__main__":
    sys.exit(main())
