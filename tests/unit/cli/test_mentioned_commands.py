"""Every command that a page, a message or a unit file mentions exists, with its options."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from varve.cli.main import app

ROOT = Path(__file__).parents[3]
_PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", ROOT / "Makefile"]
_FOLDERS = {"docs": "*.md", "src": "*.py", "packaging": "*", "examples": "*.md"}
_OPTION = re.compile(r"^-{1,2}[A-Za-z][a-z-]*")
_LEFT_OUT = ("docs/reference/cli.md", "docs/explanation/decisions/")
"""Generated from the commands; and what names commands that are gone."""
_OTHER_TEXTS = ("erasure receipt", "erasure request", "verify orders: keys")
"""Texts in backticks that begin with varve: a receipt's format and the name of a Spark stage."""


def _files() -> list[Path]:
    found = [
        path
        for folder, pattern in _FOLDERS.items()
        for path in sorted((ROOT / folder).rglob(pattern))
        if path.is_file()
    ]
    return [
        path
        for path in [*_PAGES, *found]
        if not path.relative_to(ROOT).as_posix().startswith(_LEFT_OUT)
    ]


def _mentions(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Commands in backticks and in the lines of code blocks, with the line of each."""
    block: str | None = None
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if line.startswith("```"):
            block = None if block is not None else line.removeprefix("```")
            continue
        for quoted in re.findall(r"`varve ([^`]+)`", line):
            if quoted not in _OTHER_TEXTS:
                yield number, quoted.split()
        prompt = {"console": r"\$ (?:.*\| )?", "sh": r"(?:.*\| )?"}.get(
            block or "", r"ExecStart=\S*/"
        )
        command = re.match(rf"^{prompt}varve ([a-z].*)$", line)
        if command:
            yield number, command.group(1).split()


def find_fault(words: list[str]) -> str | None:
    """What is wrong with a command; prose that happens to begin with varve has no such word."""
    command: click.Command | None = app
    context = click.Context(app, info_name="varve", **app.context_settings)
    rest = list(words)
    while isinstance(command, click.Group):
        if not rest or not re.fullmatch(r"[a-z-]+", rest[0]) or rest[0].startswith("-"):
            return None
        child = command.get_command(context, rest[0])
        if child is None:
            return f"no command {rest[0]!r}"
        # A command keeps the help option of its first context.
        settings = child.context_settings
        command, context = (
            child,
            click.Context(child, parent=context, info_name=rest[0], **settings),
        )
        rest = rest[1:]
    assert command is not None
    known = {
        spelling
        for parameter in command.get_params(context)
        for spelling in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in rest:
        if word in ("|", "&", "&&", ";", "#"):
            break
        option = _OPTION.match(word)
        if option and option.group() not in known:
            return f"no option {option.group()!r}"
    return None


def test_every_mentioned_command_exists() -> None:
    checked = 0
    faults = []
    for path in _files():
        for number, words in _mentions(path):
            checked += 1
            fault = find_fault(words)
            if fault is not None:
                place = path.relative_to(ROOT).as_posix()
                faults.append(f"{place}:{number}: varve {' '.join(words)[:80]}: {fault}")
    assert checked > 200
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("text", ["log read orders", "topic list --broker x", "serve --dira x"])
def test_a_command_that_does_not_exist_is_found(text: str) -> None:
    assert find_fault(text.split()) is not None
