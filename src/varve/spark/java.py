"""The Java that Spark runs on: found, or installed from the system's packages.

`python -m varve.spark.java` prints which one is used, with `--install` it installs one where there
is none. Exit codes: 0 there is one, 1 there is none, 2 wrong usage.

Invariant  a Java counts when it ran and named a version that Spark runs on; a path alone is not
           proof, since macOS has a `java` that only says to install one. Nothing is run as root but
           the package manager itself, through sudo where this is not root; sudo may ask for a
           password on a terminal only.
"""

import glob
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
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


# Finding one


OLDEST: Final = 17

_RUN_SECONDS: Final = 30
# Packages put a Java here that need not be on PATH; those of Homebrew never are.
_PLACES: Final = (
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


def find_java(
    environment: Mapping[str, str] | None = None, places: Sequence[str] = _PLACES
) -> Java | None:
    """The first Java that is new enough: by JAVA_HOME, by PATH, then where packages put them."""
    return next(
        (
            java
            for java in _find_all(os.environ if environment is None else environment, places)
            if java.version >= OLDEST
        ),
        None,
    )


def get_java(environment: Mapping[str, str] | None = None, places: Sequence[str] = _PLACES) -> Java:
    """As `find_java`; raises Unavailable with what there is and what to do."""
    given = os.environ if environment is None else environment
    java = find_java(given, places)
    if java is None:
        raise Unavailable(tell_missing(given, places))
    return java


def tell_missing(environment: Mapping[str, str], places: Sequence[str] = _PLACES) -> str:
    """That there is no Java, the older ones that there are, and the remedy."""
    old = {java.home: java.version for java in _find_all(environment, places)}
    found = ", ".join(f"Java {version} in {home}" for home, version in old.items())
    return (
        f"Spark needs Java {OLDEST} or newer, and there is "
        f"{f'only {found}' if found else 'none by JAVA_HOME or PATH'}: install one with "
        "`python -m varve.spark.java --install`, or set JAVA_HOME to one that is there"
    )


def read_java(program: str) -> Java | None:
    """What a `java` program says of itself; None where it does not run or says nothing."""
    try:
        ran = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_RUN_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    properties = dict(re.findall(r"^ *(java\.[a-z.]+) = (.*?)\s*$", ran.stdout + ran.stderr, re.M))
    home, version = properties.get("java.home"), properties.get("java.specification.version", "")
    number = re.fullmatch(r"(?:1\.)?([0-9]{1,4})", version)  # before 9 they were called 1.8
    if ran.returncode or not home or number is None:
        return None
    return Java(home, int(number[1]))


def _find_all(environment: Mapping[str, str], places: Sequence[str]) -> Iterator[Java]:
    for program in _programs(environment, places):
        java = read_java(program)
        if java is not None:
            yield java


def _programs(environment: Mapping[str, str], places: Sequence[str]) -> Iterator[str]:
    """Each program once, however many links lead to it."""
    homes = [environment["JAVA_HOME"]] if environment.get("JAVA_HOME") else []
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    installed = [home for place in places for home in sorted(glob.glob(place), reverse=True)]
    programs = [
        *(os.path.join(home, "bin", "java") for home in homes),
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
    java = find_java()
    try:
        if java is None and arguments:
            install_java()
            java = find_java()
        if java is None:
            raise Unavailable(tell_missing(os.environ))
    except Unavailable as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"Spark runs on Java {java.version} in {java.home}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
