"""`make soak`: a server under load that is killed and restarted, against a model.

python -m tools.soak [--minutes 30] [--seed N] [--dir DIR] [--json]
"""

import sys
from collections.abc import Callable
from pathlib import Path

from tools.soak.command import run_soak
from tools.soak.plan import make_plan
from tools.soak.run import Result, Soak


def _run(folder: Path, seed: int, seconds: float, tell: Callable[[str], None]) -> Result:
    return Soak(folder, seed, tell).run(make_plan(seed, seconds), seconds)


if __name__ == "__main__":
    sys.exit(run_soak("tools.soak", __doc__, _run))
