"""What the tests of real shape clients need besides Python: Node.js, npm packages, Chromium.

`python -m tests.support.web_setup` prints the marks of the tests that cannot run here, one a line,
and why on stderr. With `--install` it first installs what is missing: packages of the system where
apt-get is there and this is root, then those of npm. Exit codes: 0, 2 wrong usage.

Invariant  a tool counts when it ran and named a version that will do; a path alone is not proof.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (ROOT / "tests" / "shape_clients", ROOT / "examples" / "shapes")
"""Folders with a package.json of their own."""
OLDEST_NODE: Final = 18

_BROWSERS: Final = (
    "chromium-headless-shell",
    "chromium",
    "chromium-browser",
    "google-chrome-stable",
    "google-chrome",
)
_DEBIAN: Final = {"node": ("nodejs", "npm"), "browser": ("chromium-headless-shell", "chromium")}
_RUN_SECONDS: Final = 30
_INSTALL_SECONDS: Final = 600

FindProgram = Callable[[str], str | None]
Run = Callable[[Sequence[str], Path], int]
"""Runs a command in a directory, and gives its exit status; shows the output of one that fails."""


def find_node(find_program: FindProgram = shutil.which) -> str | None:
    """The path of a Node.js that is new enough to have `fetch`."""
    program = find_program("node")
    version = _read_version(program) if program else None
    return program if version is not None and version >= OLDEST_NODE else None


def find_chromium(find_program: FindProgram = shutil.which) -> str | None:
    """The path of a browser that takes Chromium's options."""
    for name in _BROWSERS:
        program = find_program(name)
        if program is not None and _read_version(program) is not None:
            return program
    return None


def find_missing(
    find_program: FindProgram = shutil.which, packages: Sequence[Path] = PACKAGES
) -> dict[str, str]:
    """The marks of tests that cannot run here, and what each of them lacks."""
    without = [str(folder) for folder in packages if not (folder / "node_modules").is_dir()]
    missing = {}
    if find_node(find_program) is None:
        missing["node"] = f"Node.js {OLDEST_NODE} or newer"
    elif without:
        missing["node"] = f"the packages of npm in {' and '.join(without)}"
    if without:
        missing["browser"] = f"the packages of npm in {' and '.join(without)}"
    elif find_chromium(find_program) is None:
        missing["browser"] = "Chromium"
    return missing


def install(
    *,
    find_program: FindProgram = shutil.which,
    run: Run | None = None,
    is_root: bool | None = None,
    packages: Sequence[Path] = PACKAGES,
) -> None:
    """Installs what is missing as far as it can; `find_missing` tells what it could not."""
    execute = _run if run is None else run
    may_install = find_program("apt-get") is not None and (
        os.geteuid() == 0 if is_root is None else is_root
    )
    if may_install:
        _install_programs(find_program, execute)
    if find_program("npm") is not None:
        for folder in packages:
            execute(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], folder)


def _install_programs(find_program: FindProgram, run: Run) -> None:
    has_node = find_node(find_program) is not None and find_program("npm") is not None
    has_browser = find_chromium(find_program) is not None
    if has_node and has_browser:
        return
    run(["apt-get", "update"], ROOT)
    command = ["apt-get", "install", "--yes", "--no-install-recommends"]
    if not has_node:
        run([*command, *_DEBIAN["node"]], ROOT)
    if not has_browser:
        for package in _DEBIAN["browser"]:
            if run([*command, package], ROOT) == 0:
                return


def _read_version(program: str) -> int | None:
    """The first number of what the program says to --version; None where it does not run."""
    try:
        ran = subprocess.run(
            [program, "--version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    number = re.search(r"\d{1,9}", ran.stdout)
    return int(number[0]) if ran.returncode == 0 and number else None


def _run(command: Sequence[str], directory: Path) -> int:
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        process = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=_INSTALL_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
        return 1
    if process.returncode:
        print(process.stdout, end="", file=sys.stderr, flush=True)
    return process.returncode


def main(arguments: Sequence[str]) -> int:
    if arguments not in ([], ["--install"]):
        print("usage: python -m tests.support.web_setup [--install]", file=sys.stderr)
        return 2
    if arguments:
        install()
    for mark, lack in find_missing().items():
        print(f"SKIPPED the tests marked {mark}, for want of {lack}.", file=sys.stderr)
        print(mark)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
