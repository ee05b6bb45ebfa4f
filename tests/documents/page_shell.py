"""Runs the steps of a page in one shell and one directory, and compares what they print.

The commands of the page are those of this checkout; ports that pages name are ports of this run.
"""

import difflib
import os
import queue
import re
import shlex
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from tests.documents.page_blocks import Step
from tests.support.forked_commands import CLIENT, CommandServers
from tests.support.kafka_server import HOST, ReservedPort

PORTS: Final = (9092, 8080, 9404)
"""The ports that pages use: of the broker, of shapes, of metrics."""
_HOME: Final = "/srv"
"""Where a page's examples are run, as its outputs show it."""
_TIMEOUT_SECONDS: Final = 280.0
_END: Final = "--- end of command"
_DEFAULT_LISTENER: Final = r"^(varve serves (?:PLAINTEXT|shapes at http)://)localhost\b"
"""A server prints the address that it listens on, which is no name by default."""
_LOG_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (INFO|WARNING) varve\.")

VOLATILE: Final[tuple[tuple[str, str], ...]] = (
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", "UUID"),
    (r"\b\d{8}-\d{16}\b", "HANDLE"),
    (r"\bhead [0-9a-f]{12}\.\.\.", "HEAD"),
    (r"(?<![\w-])[\w+-]{22}(?![\w+-])", "ID"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|\+00:00)?( UTC)?", "TIME"),
    (r"\b1[5-9]\d{11}\b", "TIME_MS"),
    (r"\b\d[\d,]*(\.\d+)? ?(B|KiB|MiB|GiB)(/s)?(?!\w)", "SIZE"),
    (r"\b\d+(\.\d+)? ?(µs|ms|s|min|h)\b( \d+ (ms|s|min)\b)?", "DURATION"),
    (r"\bpid \d+", "pid N"),
    (r"\d+\.\d{4} USD", "PRICE"),
    (r"[█▏▎▍▌▋▊▉·]+", "BAR"),
)
"""What differs from run to run, and the word that stands for it when outputs are compared."""


def _make_comparable(text: str) -> list[str]:
    for pattern, word in VOLATILE:
        text = re.sub(pattern, word, text)
    # A column is as wide as its values, some of which differ.
    lines = (re.sub(r"\s+", " ", line).strip() for line in text.splitlines())
    return [re.sub(r"-{3,}", "---", line) for line in lines if line]


def find_difference(expected: str, actual: str) -> str:
    """A difference that matters, as lines to read; empty if there is none."""
    wanted, found = _make_comparable(expected), _make_comparable(actual)
    if _matches(wanted, found):
        return ""
    return "\n".join(difflib.unified_diff(wanted, found, "the page", "this run", lineterm=""))


def _matches(wanted: Sequence[str], found: Sequence[str]) -> bool:
    if not wanted:
        return not found
    if wanted[0] == "...":
        return any(_matches(wanted[1:], found[count:]) for count in range(len(found) + 1))
    return bool(found) and wanted[0] == found[0] and _matches(wanted[1:], found[1:])


class PageShell:
    """A shell in an empty directory."""

    def __init__(self, servers: CommandServers, environment: Mapping[str, str]) -> None:
        self._servers = servers
        self._stack = ExitStack()
        ports = {port: self._stack.enter_context(ReservedPort()).number for port in PORTS}
        self._ports = ports
        self._running = 0
        self._shell = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-O", "expand_aliases"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=servers.home,
            start_new_session=True,
            env={
                **servers.environment,
                "PAGE": str(ports),
                "VARVE_BOOTSTRAP": f"{HOST}:{ports[9092]}",
                "VARVE_LISTENERS": f"PLAINTEXT://{HOST}:{ports[9092]}",
                "VARVE_SHAPE_URL": f"http://{HOST}:{ports[8080]}",
                **environment,
            },
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        for name in ("varve", "python"):
            self._send(f"alias {name}={shlex.quote(shlex.join([*CLIENT, name]))}\n")

    def _read(self) -> None:
        assert self._shell.stdout is not None
        for line in self._shell.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def run(self, step: Step) -> tuple[str, int]:
        """What a step prints, and its exit code."""
        text = step.text
        if step.is_python:
            program = self._servers.directory / f"line_{step.line}.py"
            program.write_text(self._with_own_places(text), encoding="utf-8")
            text = f"python {program}"
        command = self._with_own_places(text)
        printed, code = self._run_command(f"{{\n{command}\n}} </dev/null")
        if step.is_background and " serve " in text:
            self._running += 1
            printed += self._next_line(time.monotonic() + _TIMEOUT_SECONDS)
        elif jobs := re.findall(r"%\S+", text) if text.startswith("kill ") else []:
            self._run_command(f"wait {' '.join(jobs)}")
            self._running -= len(jobs)
            self._servers.settle(self._running)
        return self._as_on_page(printed), code

    def _run_command(self, command: str) -> tuple[str, int]:
        self._send(f"{command}\nprintf '\\n%s %d\\n' '{_END}' $?\n")
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        text = ""
        while not (line := self._next_line(deadline)).startswith(_END):
            text += line
        return text.removesuffix("\n"), int(line.split()[-1])

    def _send(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def _next_line(self, deadline: float) -> str:
        """The next line that is not a server's log."""
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError("a command prints nothing and does not end") from None
            assert line is not None, "the shell ended"
            if not _LOG_LINE.match(line):
                return line

    def _with_own_places(self, text: str) -> str:
        for port, own in self._ports.items():
            text = re.sub(rf"\b(localhost|127\.0\.0\.1):{port}\b", f"{HOST}:{own}", text)
            text = re.sub(rf"(-port[ =]){port}\b", rf"\g<1>{own}", text)
        text = text.replace(f"{_HOME}/", f"{self._servers.home}/")
        listen = f"varve shape serve --listen {HOST}:{self._ports[8080]} "
        return text if "--listen" in text else text.replace("varve shape serve ", listen)

    def _as_on_page(self, text: str) -> str:
        for port, own in self._ports.items():
            text = text.replace(f"{HOST}:{own}", f"localhost:{port}")
        text = re.sub(_DEFAULT_LISTENER, r"\g<1>127.0.0.1", text, flags=re.MULTILINE)
        text = re.sub(r"^bash: line \d+: +\d+ (Killed|Terminated) .*\n?", "", text, flags=re.M)
        return text.replace(str(self._servers.home), _HOME)

    def close(self) -> None:
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        self._send("kill $(jobs -p) 2>/dev/null; wait\n")
        self._shell.stdin.close()
        try:
            self._shell.wait(20)
        except subprocess.TimeoutExpired:  # a command that did not end
            os.killpg(self._shell.pid, signal.SIGKILL)
            self._shell.wait(20)
        self._reader.join(60)
        self._shell.stdout.close()
        self._servers.settle(0)
        self._stack.close()


@contextmanager
def page_shell(servers: CommandServers, environment: Mapping[str, str]) -> Iterator[PageShell]:
    """A shell in a directory without files; what still runs at its end is stopped."""
    subprocess.run(["rm", "-rf", *servers.home.iterdir()], check=True)
    shell = PageShell(servers, environment)
    try:
        yield shell
    finally:
        shell.close()
