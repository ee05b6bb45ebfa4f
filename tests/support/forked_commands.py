"""Commands that start at once: forked from a process that has everything imported.

A test whose subject is the command, not the start of an interpreter, runs `VARVE` instead of
`python -m varve`, with the variables of the server in its environment.
"""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Final, Self

ROOT: Final = Path(__file__).parents[2]
CLIENT: Final = [sys.executable, "-IS", str(Path(__file__).with_name("command_client.py"))]
VARVE: Final = [*CLIENT, "varve"]
"""Begins a command; the process forwards SIGINT, SIGTERM and SIGHUP, and has its exit code."""


class CommandServers:
    """The processes that run commands, forked from one that has imported everything."""

    def __init__(self, directory: Path, *, with_spark: bool) -> None:
        self.directory = directory
        self.home = directory / "home"
        self.home.mkdir()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("VARVE_")},
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "PYTHONUNBUFFERED": "1",
            "COLUMNS": "120",
        }
        self.variables: dict[str, str] = {}
        """By which the processes of `CLIENT` find the servers."""
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._start("COMMAND_SERVER")
        if with_spark:
            self._start("COMMAND_SPARK", "spark")

    def install(self, directory: Path) -> None:
        """Makes an executable `varve` in a directory, for the PATH of a shell."""
        program = directory / "varve"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(VARVE)} "$@"\n', encoding="utf-8")
        program.chmod(0o755)

    def _start(self, variable: str, *kind: str) -> None:
        path = self.directory / f"{variable}.socket"
        self._processes[variable] = process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.command_server", str(path), *kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=self.environment,
        )
        self.variables[variable] = str(path)
        self.environment = {**self.environment, **self.variables}
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"

    def settle(self, running: int) -> None:
        """Waits until so many commands run; a killed server is gone, with its lock."""
        process = self._processes["COMMAND_SERVER"]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{running}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "settled\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes.values():
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.wait(60)
            process.stdout.close()
