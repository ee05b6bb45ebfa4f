"""README.md runs from top to bottom and prints what it shows; it stays short."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.kafka_server import HOST, ReservedPort

PAGE = Path(__file__).parents[3] / "README.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SERVE = "varve serve -d data &"
_LINES_MAX = 130
_WORDS_MAX = 900


def _blocks() -> list[tuple[str, str]]:
    return _BLOCK.findall(PAGE.read_text(encoding="utf-8"))


def _examples() -> list[tuple[str, str, str]]:
    """Language, program or command, and the output that the page shows, in order."""
    examples: list[tuple[str, str, str]] = []
    blocks = _blocks()
    for index, (language, text) in enumerate(blocks):
        if language == "python":
            follows = blocks[index + 1] if index + 1 < len(blocks) else ("python", "")
            examples.append(("python", text, follows[1] if not follows[0] else ""))
        elif language == "console":
            for command in text.removeprefix("$ ").split("\n$ "):
                line, _, printed = command.partition("\n")
                examples.append(("console", line, printed))
    return examples


class _Page:
    """Runs examples in one directory, with a broker on a port of its own."""

    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._address = f"{HOST}:{port}"
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
        self._environment = {**os.environ, "PATH": path, "VARVE_BOOTSTRAP": self._address}

    def run(self, language: str, text: str) -> str:
        command = [sys.executable, "-c", text.replace("localhost:9092", self._address)]
        if language == "console":
            command = ["sh", "-c", text]
        return subprocess.run(
            command,
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if language == "console" else None,
            text=True,
            timeout=300,
            check=True,
        ).stdout

    @contextmanager
    def serving(self) -> Iterator[None]:
        command = [sys.executable, "-m", "varve", "serve", "-d", "data", "--listen", self._address]
        with subprocess.Popen(
            command, cwd=self._directory, stdout=subprocess.PIPE, text=True
        ) as server:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("varve serves ")
            try:
                yield
            finally:
                server.terminate()
                server.wait(timeout=60)


def _run_page(directory: Path, *, has_spark: bool) -> None:
    examples = _examples()
    served = next(index for index, (_, text, _) in enumerate(examples) if text == _SERVE)
    with ReservedPort() as port:
        page = _Page(directory, port.number)
        for language, text, printed in examples[:served]:
            assert page.run(language, text).rstrip() == printed.rstrip(), text
        with page.serving():
            for language, text, printed in examples[served + 1 :]:
                if has_spark or "spark" not in text:
                    assert page.run(language, text).rstrip() == printed.rstrip(), text


def test_the_page_runs_from_top_to_bottom(tmp_path: Path) -> None:
    assert len(_examples()) >= 6
    _run_page(tmp_path, has_spark=False)


@pytest.mark.spark
def test_the_page_runs_with_spark(tmp_path: Path) -> None:
    _run_page(tmp_path, has_spark=True)


def test_the_page_is_short() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= _LINES_MAX
    assert len(text.split()) <= _WORDS_MAX
