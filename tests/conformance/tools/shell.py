"""A Java program that answers JSON lines, with a deadline for every answer.

Threads    one caller; a reader thread hands the answers over, a second one keeps the log's tail.
"""

import base64
import json
import queue
import subprocess
import threading
from collections import deque
from types import TracebackType
from typing import Any, Self

from tests.conformance.tools.toolchain import Toolchain
from varve.records import Record

ANSWER_SECONDS = 90.0
END_SECONDS = 15.0

# An answer is JSON from outside: its shape is what the Java side's operation returns.
Answer = dict[str, Any]


class ShellFailed(Exception):
    """The Java program died, kept silent, or answered with an error."""

    def __init__(self, message: str, error: str = "") -> None:
        super().__init__(message)
        self.error = error


class JavaShell:
    """One running virtual machine; a context manager that ends the process.

    An operation that takes longer than `answer_seconds` counts as failed.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        main_class: str,
        *arguments: str,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._process = subprocess.Popen(
            toolchain.command(main_class, *arguments),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._answers: queue.Queue[bytes] = queue.Queue()
        self._log: deque[str] = deque(maxlen=60)
        self._threads = [
            threading.Thread(target=self._collect_answers, daemon=True),
            threading.Thread(target=self._collect_log, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def call(self, operation: str, **arguments: object) -> Answer:
        """Runs one operation and returns its answer; an error answer raises `ShellFailed`."""
        answer = self.try_call(operation, **arguments)
        if "error" in answer:
            raise ShellFailed(
                f"{operation} failed: {answer['error']}: {answer['message']}", answer["error"]
            )
        return answer

    def try_call(self, operation: str, **arguments: object) -> Answer:
        """Like `call`, but hands an error answer over as it is."""
        assert self._process.stdin is not None
        line = json.dumps({"op": operation, **arguments}).encode() + b"\n"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            raw = self._answers.get(timeout=self._answer_seconds)
        except (queue.Empty, BrokenPipeError) as error:
            raise ShellFailed(self._silence(operation)) from error
        if not raw:
            raise ShellFailed(self._silence(operation))
        answer: Answer = json.loads(raw)
        return answer

    def close(self) -> None:
        """Ends the program by closing its input; kills it if it does not follow."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            self._process.kill()
        self._end()

    def kill(self) -> None:
        """Ends the program at once, as a crash would."""
        self._process.kill()
        self._end()

    def _end(self) -> None:
        try:
            self._process.wait(timeout=END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(timeout=END_SECONDS)
        for thread in self._threads:
            thread.join(timeout=END_SECONDS)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None and not stream.closed:
                stream.close()

    def _collect_answers(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")

    def _collect_log(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._log.append(line.decode(errors="replace").rstrip())

    def _silence(self, operation: str) -> str:
        tail = "\n".join(self._log)
        return f"no answer to {operation} within {self._answer_seconds} s; log:\n{tail}"


def to_text(data: bytes | None) -> str | None:
    """Bytes as the shells carry them."""
    return None if data is None else base64.b64encode(data).decode()


def from_text(text: str | None) -> bytes | None:
    """The bytes a shell's answer carries."""
    return None if text is None else base64.b64decode(text)


def records_of(answer: Answer) -> list[Record]:
    """The records that an operation found, without markers."""
    return [
        Record(
            key=from_text(row["key"]),
            value=from_text(row["value"]),
            headers=tuple((name, from_text(value)) for name, value in row["headers"]),
            timestamp=row["timestamp"],
            offset=row["offset"],
        )
        for row in answer["records"]
        if not row.get("control")
    ]
