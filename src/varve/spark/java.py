"""Finds the Java that Spark runs on, or installs one from the system's packages.

`python -m varve.spark.java` prints the Java that is used; with `--install` it installs one if none
is found. Exit codes: 0 there is a Java, 1 there is none, 2 wrong usage.

Invariant  a Java is accepted only if it runs and reports a version that Spark supports: macOS has a
           `java` that only says to install one. Only the package manager runs as root, through
           sudo where this process is not root; sudo may ask for a password on a terminal only.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
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
    """Arguments that update the list of packages, where an installation does not do so."""
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
"""Runs a command and returns its exit status."""


def install_java(
    *,
    find_program: Callable[[str], str | None] = shutil.which,
    run: Run | None = None,
    is_root: bool | None = None,
    has_terminal: bool | None = None,
) -> str:
    """Installs the first Java package that the system's package manager has; returns its name.

    Raises Unavailable with the command to run where it cannot.
    """
    execute = _run if run is None else run
    manager = _find_manager(find_program)
    prefix = _as_root(
        manager,
        find_program,
        execute,
        is_root=os.geteuid() == 0 if is_root is None else is_root,
        has_terminal=sys.stdin.isatty() if has_terminal is None else has_terminal,
    )
    if manager.refresh and execute([*prefix, manager.program, *manager.refresh]):
        # The existing list may suffice: the installation fails if it does not.
        print(f"`{manager.program} {shlex.join(manager.refresh)}` failed", file=sys.stderr)
    for package in manager.packages:
        if execute([*prefix, manager.program, *manager.install, package]) == 0:
            return package
    raise Unavailable(
        f"{manager.program} could install none of {', '.join(manager.packages)}; its "
        "output is above: fix its error, or install Java 17 or newer yourself and set JAVA_HOME"
    )


def _find_manager(find_program: Callable[[str], str | None]) -> PackageManager:
    for manager in MANAGERS:
        if find_program(manager.program) is not None:
            return manager
    programs = ", ".join(manager.program for manager in MANAGERS)
    raise Unavailable(
        f"Spark needs Java 17 or newer, and none of {programs} is installed: install Java "
        "yourself, such as from https://adoptium.net, and set JAVA_HOME"
    )


def _as_root(
    manager: PackageManager,
    find_program: Callable[[str], str | None],
    run: Run,
    *,
    is_root: bool,
    has_terminal: bool,
) -> tuple[str, ...]:
    """The prefix of a command that runs it as root; raises Unavailable if that is not possible."""
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
        f"here: ask an administrator to run `{command}` as root, or set JAVA_HOME "
        "to an installed Java"
    )


def _run(command: Sequence[str]) -> int:
    """Runs a command and shows its output only if it fails; sudo asks on the terminal itself."""
    print(f"$ {shlex.join(command)}", file=sys.stderr, flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        process = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
            text=True,
            errors="replace",
        )
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
        return 1
    if process.returncode:
        print(process.stdout, end="", file=sys.stderr, flush=True)
    return process.returncode


# Finding an installed Java


VERSION_MIN: Final = 17

_RUN_TIMEOUT_SECONDS: Final = 30
# Packages put a Java here that need not be on PATH; those of Homebrew never are.
HOME_PATTERNS: tuple[str, ...] = (
    "/usr/lib/jvm/*",
    "/usr/lib64/jvm/*",
    "/usr/java/*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "/opt/homebrew/opt/openjdk*",
    "/usr/local/opt/openjdk*",
    "/home/linuxbrew/.linuxbrew/opt/openjdk*",
)


@dataclass(frozen=True, slots=True)
class Java:
    """An installed Java: what JAVA_HOME would name, and its version, such as 17."""

    home: str
    version: int


def find_java() -> Java | None:
    """The first Java that is new enough: by JAVA_HOME, by PATH, then where packages put them."""
    return next((java for java in _find_javas() if java.version >= VERSION_MIN), None)


def get_java() -> Java:
    """Like `find_java`; raises Unavailable with the older versions that it saw and the remedy."""
    java = find_java()
    if java is not None:
        return java
    javas = {java.home: java.version for java in _find_javas()}
    versions = ", ".join(f"Java {version} in {home}" for home, version in javas.items())
    home = os.environ.get("JAVA_HOME")
    raise Unavailable(
        f"Spark needs Java {VERSION_MIN} or newer, and there is "
        f"{f'only {versions}' if versions else 'none by JAVA_HOME or PATH'}"
        f"{f' (JAVA_HOME is {home})' if home else ''}: install one with "
        "`python -m varve.spark.java --install`, or set JAVA_HOME to an installed one"
    )


def read_java(program: str) -> Java | None:
    """Home and version of a `java` program; None where it does not run or reports none."""
    try:
        process = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(
        re.findall(r"^ *(java\.[a-z.]+) = (.*?)\s*$", process.stdout + process.stderr, re.M)
    )
    home, version = properties.get("java.home"), properties.get("java.specification.version", "")
    number = re.fullmatch(r"(?:1\.)?([0-9]{1,4})", version)  # 8 reports 1.8
    if process.returncode or not home or number is None:
        return None
    return Java(home, int(number[1]))


def _find_javas() -> Iterator[Java]:
    for program in _find_programs():
        java = read_java(program)
        if java is not None:
            yield java


def _find_programs() -> Iterator[str]:
    """The candidate programs, each once, even if several links lead to it."""
    home, on_path = os.environ.get("JAVA_HOME"), shutil.which("java")
    installed = [
        home for pattern in HOME_PATTERNS for home in sorted(glob.glob(pattern), reverse=True)
    ]
    programs = [
        *([os.path.join(home, "bin", "java")] if home else []),
        *([on_path] if on_path else []),
        *(os.path.join(home, "bin", "java") for home in installed),
    ]
    seen: set[str] = set()
    for program in programs:
        real = os.path.realpath(program)
        if real not in seen and os.access(real, os.X_OK):
            seen.add(real)
            yield program


def main(arguments: Sequence[str]) -> int:
    if arguments not in ([], ["--install"]):
        print("usage: python -m varve.spark.java [--install]", file=sys.stderr)
        return 2
    try:
        if arguments and find_java() is None:
            install_java()
        java = get_java()
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Spark runs on Java {java.version} in {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
