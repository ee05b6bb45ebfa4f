"""README.md: the commands on a directory print what it shows."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from varve.cli.main import app

PAGE = Path(__file__).parents[3] / "README.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _examples(text: str) -> list[tuple[str, str]]:
    """Commands on the directory of scores, and what they print."""
    found = []
    for block in _BLOCK.findall(text):
        if "scores --dir data" in block:
            for one in block.removeprefix("$ ").split("\n$ "):
                command, _, printed = one.partition("\n")
                found.append((command, _comparable(printed)))
    return found


def _comparable(text: str) -> str:
    """Without times, sizes that depend on them, and ids; stderr may come before or after."""
    text = re.sub(r"(?<=  id )[\w-]{22}\n", "ID\n", text)
    text = re.sub(r'"timestamp": \d+', '"timestamp": 0', text)
    text = re.sub(r"\d+ to \d+ bytes, \d+ % less", "fewer bytes", text)
    return "\n".join(sorted(line.rstrip() for line in text.splitlines()))


def _run(command: str) -> str:
    first, pipe, second = command.partition(" | varve ")
    given = None
    if pipe:
        given = subprocess.run(["sh", "-c", first], capture_output=True, check=True).stdout
    arguments = shlex.split(f"varve {second}" if pipe else command)[1:]
    return CliRunner().invoke(app, arguments, input=given).output


def test_the_commands_print_what_the_readme_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = _examples(PAGE.read_text())
    assert len(found) == 8
    for command, printed in found:
        told = _run(command).replace(str(tmp_path), "/home/you")
        assert _comparable(told) == printed, command
