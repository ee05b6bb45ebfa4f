"""The examples of a page: its fenced blocks, in order, as steps to run.

    console   lines that begin with `$ ` are commands; the lines after one are what it prints
    sh        commands whose output the page does not show
    python    a program; a block without a language directly after it is what it prints

A backslash at the end of a line continues a command. A line `...` in an output stands for any
lines. Blocks of other languages are not run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_OUTPUT_LANGUAGES = ("", "text")
RUNNABLE = ("console", "sh", "python")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, the number of its first line, and the output block directly after it."""

    line: int
    language: str
    text: str
    printed: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """A command or a program, and what the page shows that it prints; None if it shows nothing."""

    line: int
    is_python: bool
    text: str
    printed: str | None

    @property
    def is_background(self) -> bool:
        return not self.is_python and self.text.rstrip().endswith("&")


def pages() -> list[Path]:
    """README, and every page of docs but the decisions, which quote commands that are gone."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    return [ROOT / "README.md", *(page for page in docs if "decisions" not in page.parts)]


def find_blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page that can be run, each with the output that follows it."""
    text = page.read_text(encoding="utf-8")
    found = list(_FENCE.finditer(text))
    blocks = []
    for index, match in enumerate(found):
        language, content = match.groups()
        if language in RUNNABLE:
            line = text.count("\n", 0, match.start()) + 2
            following = found[index + 1] if index + 1 < len(found) else None
            blocks.append(Block(line, language, content, _output(text, match, following)))
    return blocks


def _output(text: str, block: re.Match[str], following: re.Match[str] | None) -> str | None:
    if following is None or following[1] not in _OUTPUT_LANGUAGES:
        return None
    if text[block.end() : following.start()].strip():
        return None
    return following[2]


def find_steps(block: Block) -> Iterator[Step]:
    """The commands of a block, or its program."""
    if block.language == "python":
        yield Step(block.line, True, block.text, block.printed)
        return
    lines = block.text.splitlines()
    index = 0
    while index < len(lines):
        start = index
        if block.language == "sh" and not lines[start].split("#")[0].strip():
            index += 1
            continue
        command = lines[index].removeprefix("$ ") if block.language == "console" else lines[index]
        while command.endswith("\\"):
            index += 1
            command += "\n" + lines[index]
        index += 1
        printed = None
        if block.language == "console":
            assert lines[start].startswith("$ "), f"line {block.line + start}: no command"
            output = []
            while index < len(lines) and not lines[index].startswith("$ "):
                output.append(lines[index])
                index += 1
            printed = "\n".join(output)
        yield Step(block.line + start, False, command, printed)
