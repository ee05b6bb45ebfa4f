"""The commands that look at a directory once nobody serves it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_PATIENCE_SECONDS: Final = 1_800.0
_SHOWN: Final = 5


def run_tool(*words: str) -> tuple[int, list[dict[str, Any]]]:
    """How a command of varve ended, and the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "varve", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    lines = [json.loads(one) for one in done.stdout.splitlines() if one.startswith("{")]
    if done.returncode and not lines:
        lines = [{"severity": "error", "message": done.stderr.strip()[-500:]}]
    return done.returncode, lines


def _findings(name: str, *words: str) -> list[str]:
    code, lines = run_tool(*words)
    if code == 0:
        return []
    errors = [one for one in lines if one.get("severity") == "error"]
    return [f"{name}: {json.dumps(one)[:400]}" for one in (errors or lines[-1:])[:_SHOWN]]


def check_directory(directory: Path) -> list[str]:
    """`varve check --deep` of both tiers, and `varve audit`."""
    return [
        *_findings("check", "check", "--deep", "--tier", "-d", str(directory)),
        *_findings("audit", "audit", "--deep", "--tier", "-d", str(directory)),
    ]


def check_tier(directory: Path) -> tuple[list[str], int]:
    """`varve tier fsck`: only orphans may be there, left by crashes, and a sweep takes them.

    The number of orphans comes second.
    """
    where = ("--dir", str(directory))
    code, lines = run_tool("tier", "fsck", *where)
    if code == 0:
        return [], 0
    orphans = [one for one in lines if one.get("type") == "object" and one.get("class") == "orphan"]
    if not orphans:
        return _findings("fsck", "tier", "fsck", *where, "--deep"), 0
    run_tool("tier", "fsck", *where, "--sweep", "--yes")
    return _findings("fsck", "tier", "fsck", *where, "--deep"), len(orphans)
