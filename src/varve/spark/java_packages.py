"""Java from the system's packages, by the package manager that is there.

Invariant  nothing is run as root but the package manager itself, through sudo where this is not
           root; sudo may ask for a password on a terminal only.
"""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from varve.foundation.errors import Unavailable


@dataclass(frozen=True, slots=True)
class PackageManager:
    """How a program installs a package, and the packages of Java, the first choice first."""

    program: str
    install: tuple[str, ...]
    packages: tuple[str, ...]
    refresh: tuple[str, ...] = ()
    """What brings its list of packages up to date, where installing does not do so by itself."""
    needs_root: bool = True


MANAGERS: Final = (
    PackageManager(
        "apt-get",
        ("install", "--yes", "--no-install-recommends"),
        ("openjdk-17-jre-headless", "openjdk-21-jre-headless", "default-jre-headless"),
        ("update",),
    ),
    PackageManager(
        "dnf",
        ("install", "--assumeyes"),
        ("java-17-openjdk-headless", "java-21-openjdk-headless", "java-latest-openjdk-headless"),
    ),
    PackageManager(
        "apk", ("add", "--no-cache"), ("openjdk17-jre-headless", "openjdk21-jre-headless")
    ),
    PackageManager(
        "pacman",
        ("-S", "--noconfirm", "--needed"),
        ("jre17-openjdk-headless", "jre21-openjdk-headless"),
    ),
    PackageManager(
        "zypper",
        ("--non-interactive", "install", "--no-recommends"),
        ("java-17-openjdk-headless", "java-21-openjdk-headless"),
    ),
    PackageManager("brew", ("install",), ("openjdk@17", "openjdk@21"), needs_root=False),
)

Run = Callable[[Sequence[str]], int]
"""Runs a command with its output shown, and gives its exit status."""


def install_java(
    *,
    find_program: Callable[[str], str | None] = shutil.which,
    run: Run | None = None,
    is_root: bool | None = None,
    has_terminal: bool | None = None,
) -> str:
    """Installs the first package of Java that the system's package manager has; gives its name.

    Raises Unavailable with the command to run where it cannot.
    """
    execute = _run if run is None else run
    manager = _find_manager(find_program)
    before = _as_root(
        manager,
        find_program,
        execute,
        is_root=os.geteuid() == 0 if is_root is None else is_root,
        has_terminal=sys.stdin.isatty() if has_terminal is None else has_terminal,
    )
    if manager.refresh and execute([*before, manager.program, *manager.refresh]):
        # The list that is there may do; whether it does, the installation tells.
        print(f"`{manager.program} {shlex.join(manager.refresh)}` failed", file=sys.stderr)
    for package in manager.packages:
        if execute([*before, manager.program, *manager.install, package]) == 0:
            return package
    raise Unavailable(
        f"{manager.program} could install none of {', '.join(manager.packages)}; what it said "
        "stands above: mend that, or install Java 17 or newer by hand and set JAVA_HOME"
    )


def _find_manager(find_program: Callable[[str], str | None]) -> PackageManager:
    for manager in MANAGERS:
        if find_program(manager.program) is not None:
            return manager
    known = ", ".join(manager.program for manager in MANAGERS)
    raise Unavailable(
        f"Spark needs Java 17 or newer, and none of {known} is there to install it: install it by "
        "hand, from https://adoptium.net for one, and set JAVA_HOME"
    )


def _as_root(
    manager: PackageManager,
    find_program: Callable[[str], str | None],
    run: Run,
    *,
    is_root: bool,
    has_terminal: bool,
) -> tuple[str, ...]:
    """What stands before a command so that it may install; else raises Unavailable."""
    if is_root or not manager.needs_root:
        return ()
    if find_program("sudo") is not None:
        if has_terminal:
            return ("sudo",)
        if run(["sudo", "-n", "true"]) == 0:
            return ("sudo", "-n")
    command = shlex.join([manager.program, *manager.install, manager.packages[0]])
    raise Unavailable(
        f"Spark needs Java 17 or newer, and installing it needs root, which sudo does not give "
        f"here: let somebody run `{command}` as root, or set JAVA_HOME to a Java that is there"
    )


def _run(command: Sequence[str]) -> int:
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        return subprocess.run(command, env=environment, check=False).returncode
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 1
