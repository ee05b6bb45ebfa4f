"""Sets up .venv: `python3 tools/setup_environment.py run|dev|test`.

    run   what varve needs, its compiled kernels, and Java for Spark
    dev   what varve needs, the tools of developers, and the kernels
    test  all of these, and Node.js and Chromium for the tests of shape clients

It prints what it installs and why, then does it; what is done already is left alone. It needs
only a Python with venv and pip. uv installs the packages from the index that pip is set to use.

Invariant  packages are installed by the hashes of the lock, uv itself included. A step is recorded
           in .venv when it is done, with a digest of the files it depends on.
           Java, Node.js and Chromium are tried once: what is missing is reported by what needs it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv"
PYTHON = ENVIRONMENT / "bin" / "python"
RUN_LOCK = ROOT / "requirements.lock"
DEV_LOCK = ROOT / "requirements-dev.lock"
VERSION_MIN = (3, 11)


@dataclass(frozen=True)
class Step:
    """Something to install: its description, and the files that make it stale when they change."""

    name: str
    title: str
    reason: str
    inputs: tuple[Path, ...]
    install: Callable[[], None]

    @property
    def stamp(self) -> Path:
        return ENVIRONMENT / f".{self.name}"

    def digest(self) -> str:
        return hashlib.sha256(b"\0".join(path.read_bytes() for path in self.inputs)).hexdigest()

    def is_done(self) -> bool:
        return self.stamp.is_file() and self.stamp.read_text() == self.digest()

    def run(self) -> None:
        self.install()
        self.stamp.write_text(self.digest())


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or arguments[0] not in PURPOSES:
        print(f"usage: setup_environment.py {'|'.join(PURPOSES)}", file=sys.stderr)
        return 2
    steps = [step for step in PURPOSES[arguments[0]] if not step.is_done()]
    if not steps:
        return 0
    started = time.monotonic()
    print("Setting up varve. This happens once, and installs:")
    for step in steps:
        print(f"  {step.title:18} {step.reason}")
    print("The Python packages go to .venv, all else comes from the system's packages.", flush=True)
    try:
        _check_python()
        _run_steps(steps)
    except subprocess.CalledProcessError as error:
        print(f"error: `{' '.join(map(str, error.cmd))}` failed; see above", file=sys.stderr)
        return 1
    print(f"Set up in {time.monotonic() - started:.0f} s.", flush=True)
    return 0


def _run_steps(steps: list[Step]) -> None:
    """Packages first; then kernels are compiled while the system's packages are installed."""
    for step in steps:
        if step in (RUN_PACKAGES, DEV_PACKAGES):
            step.run()
    system = [step for step in steps if step in (JAVA, WEB)]
    with ThreadPoolExecutor(max_workers=1) as pool:
        # One after the other: the system's package manager takes a lock.
        installing = pool.submit(_run_in_order, system)
        if KERNELS in steps:
            KERNELS.run()
        installing.result()


def _run_in_order(steps: list[Step]) -> None:
    for step in steps:
        step.run()


def _check_python() -> None:
    if sys.version_info < VERSION_MIN:
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"error: varve needs Python 3.11 or newer, and {sys.executable} is {version}: install "
            "one and run `make PYTHON=/path/to/python3` with the same target"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        sys.exit(
            f"error: {sys.executable} has no venv module: install it (Debian and Ubuntu: "
            "`apt install python3-venv`) and run the same command again"
        )


# Python packages


def _install_run_packages() -> None:
    # What developers installed besides stays.
    _install_packages(RUN_LOCK, "install", "-r")


def _install_dev_packages() -> None:
    _install_packages(DEV_LOCK, "sync")
    RUN_PACKAGES.stamp.write_text(RUN_PACKAGES.digest())


def _install_packages(lock: Path, *command: str) -> None:
    if not _is_usable(PYTHON):
        _call(sys.executable, "-m", "venv", "--clear", str(ENVIRONMENT))
    pinned = ENVIRONMENT / "uv.lock"
    pinned.write_text(find_locked("uv", lock.read_text()))
    _call(PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes",
          "-r", str(pinned))  # fmt: skip
    uv = [str(PYTHON.with_name("uv")), "pip"]
    variables = {**os.environ, **uv_variables(os.environ, _read_pip_settings())}
    target = ["--python", str(PYTHON), "--quiet"]
    _call(*uv, *command, str(lock), "--require-hashes", *target, variables=variables)
    _call(*uv, "install", "--no-deps", "--no-build-isolation", "-e", str(ROOT), *target,
          variables=variables)  # fmt: skip


def _is_usable(python: Path) -> bool:
    if not python.exists():
        return False
    check = f"import sys; sys.exit(sys.version_info < {VERSION_MIN})"
    return subprocess.run([python, "-c", check], check=False).returncode == 0


def find_locked(package: str, lock: str) -> str:
    """The lines of a lock that pin a package, with its hashes."""
    found = re.search(rf"^{re.escape(package)}==.*\n(?:[ \t]+.*\n?)*", lock, re.MULTILINE)
    if found is None:
        sys.exit(f"error: the lock does not pin {package}; run `make lock`")
    return found[0]


def _read_pip_settings() -> str:
    listed = subprocess.run(
        [PYTHON, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    return listed.stdout


def uv_variables(environment: Mapping[str, str], listed: str) -> dict[str, str]:
    """The variables that give uv the index, certificates and proxy of `pip config list`.

    uv reads no settings of pip. Variables that are set already win.
    """
    pip = dict(_parse_pip_settings(listed))
    wanted = {
        ("UV_DEFAULT_INDEX", "UV_INDEX_URL"): pip.get("index-url", ""),
        ("UV_INDEX", "UV_EXTRA_INDEX_URL"): _words(pip.get("extra-index-url", ""), " "),
        ("UV_FIND_LINKS",): _words(pip.get("find-links", ""), ","),
        ("UV_INSECURE_HOST",): _words(pip.get("trusted-host", ""), " "),
        ("UV_HTTP_TIMEOUT",): pip.get("timeout", pip.get("default-timeout", "")),
        ("SSL_CERT_FILE",): pip.get("cert", ""),
        ("ALL_PROXY", "HTTPS_PROXY", "https_proxy"): pip.get("proxy", ""),
        # As pip: the best version of all indexes. The hashes of the lock keep that safe.
        ("UV_INDEX_STRATEGY",): "unsafe-best-match" if "extra-index-url" in pip else "",
    }
    return {
        names[0]: value
        for names, value in wanted.items()
        if value and not any(name in environment for name in names)
    }


def _parse_pip_settings(listed: str) -> Iterator[tuple[str, str]]:
    """Names and values, a later one wins: files of all commands, of `install`, then variables."""
    settings = []
    for line in listed.splitlines():
        name, equals, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if equals and section in _PIP_SECTIONS:
            settings.append((_PIP_SECTIONS.index(section), option, str(ast.literal_eval(value))))
    for _, option, value in sorted(settings):
        yield option, value


_PIP_SECTIONS = ("global", "install", ":env:")


def _words(text: str, separator: str) -> str:
    return separator.join(text.split())


# Kernels and the system's packages


def _compile_kernels() -> None:
    _call(PYTHON, "-m", "varve.kernels")


def _install_java() -> None:
    if subprocess.run([PYTHON, "-m", "varve.spark.java", "--install"], check=False).returncode:
        print("Going on without Java: `varve job` and its tests need one.", file=sys.stderr)


def _install_web() -> None:
    command = [str(PYTHON), "-m", "tests.support.web_setup", "--install"]
    subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)


def _call(*command: str | Path, variables: Mapping[str, str] | None = None) -> None:
    subprocess.run(command, cwd=ROOT, env=variables, check=True)


RUN_PACKAGES = Step(
    "ready-run",
    "Python packages",
    "numpy and numba (kernels), pyarrow and Spark (jobs), librdkafka (clients); 1.2 GB",
    (RUN_LOCK, ROOT / "pyproject.toml"),
    _install_run_packages,
)
DEV_PACKAGES = Step(
    "ready-dev",
    "Python packages",
    "those of varve (numpy, numba, pyarrow, Spark), pytest, mypy, ruff, Kafka clients; 1.6 GB",
    (DEV_LOCK, ROOT / "pyproject.toml"),
    _install_dev_packages,
)
KERNELS = Step(
    "ready-kernels",
    "Kernels",
    "machine code for this CPU, compiled by numba on all cores",
    (),
    _compile_kernels,
)
JAVA = Step(
    "ready-java", "Java 17 or newer", "Spark runs on it; unless there is one", (), _install_java
)
WEB = Step(
    "ready-web",
    "Node.js, Chromium",
    "the tests of shapes run their JavaScript clients; unless they are there",
    tuple(
        ROOT / folder / "package-lock.json" for folder in ("tests/shape_clients", "examples/shapes")
    ),
    _install_web,
)
PURPOSES = {
    "run": (RUN_PACKAGES, KERNELS, JAVA),
    "dev": (DEV_PACKAGES, KERNELS),
    "test": (DEV_PACKAGES, KERNELS, JAVA, WEB),
}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
