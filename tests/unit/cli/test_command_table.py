"""The table of commands: summaries, examples, short flags and help of every click command."""

import json
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from varve.cli.command import CommandGroup, Entry, VarveCommand
from varve.cli.main import COMMANDS, app

_HELP_LINES_MAX = 50
_HELP_COLUMNS = 100
_ENGINE = {"numba", "numpy", "obstore", "pydantic", "pyarrow", "rich"}
_HEAVY = (*sorted(_ENGINE), "confluent_kafka", "cryptography", "pyiceberg", "pyspark", "uvicorn")
_REPORT = {
    "format": 2,
    "job": "compact",
    "application": "",
    "started_ms": 0,
    "duration_ms": 1,
    "rows": None,
    "tasks": 0,
    "failed_tasks": 0,
    "shuffled_bytes": 0,
    "store": {"requests": 0, "read_bytes": 0, "written_bytes": 0},
    "steps": [],
    "stages": [],
    "remote_stages": [],
    "notes": [],
}


def _entries(
    entries: Mapping[str, object] = COMMANDS, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Entry]]:
    """The words of each command that click declares, and its entry."""
    for name, entry in entries.items():
        if isinstance(entry, Entry):
            yield (*path, name), entry
        else:
            assert isinstance(entry, CommandGroup)
            yield from _entries(entry.entries, (*path, name))


ENTRIES = dict(_entries())
every_command = pytest.mark.parametrize("words", list(ENTRIES), ids=" ".join)


def _command(words: tuple[str, ...]) -> VarveCommand:
    command, arguments = _resolve(list(words))
    assert not arguments
    return command


def _resolve(arguments: list[str]) -> tuple[VarveCommand, list[str]]:
    """The command that the first words name, and the arguments that follow."""
    command: click.Command | None = app
    while isinstance(command, click.Group):
        command = command.get_command(click.Context(command), arguments[0])
        arguments = arguments[1:]
    assert isinstance(command, VarveCommand), arguments
    return command, arguments


@every_command
def test_the_summary_is_the_first_line_of_the_help(words: tuple[str, ...]) -> None:
    help = _command(words).help
    assert help is not None
    assert help.partition("\n\n")[0].replace("\n", " ").strip() == ENTRIES[words].summary


def _example_arguments(example: str) -> Iterator[list[str]]:
    """The words after `varve` of each command of a pipeline."""
    for part in re.split(" [<>] ", example)[0].split(" | "):
        program, *arguments = shlex.split(part)
        if program == "varve":
            yield arguments


@every_command
def test_there_are_two_examples_and_they_parse(words: tuple[str, ...]) -> None:
    examples = _command(words).examples
    assert len(examples) >= 2
    for example in examples:
        lines = list(_example_arguments(example))
        assert list(words) in [line[: len(words)] for line in lines], example
        for line in lines:
            command, arguments = _resolve(line)
            command.make_context(command.name, arguments, resilient_parsing=False)


def test_a_short_flag_has_one_meaning() -> None:
    meanings: dict[str, dict[str, str]] = defaultdict(dict)
    for words in ENTRIES:
        for parameter in _command(words).params:
            for flag in parameter.opts if isinstance(parameter, click.Option) else ():
                if not flag.startswith("--"):
                    long = [spelling for spelling in parameter.opts if spelling.startswith("--")]
                    meanings[flag][" ".join(long)] = " ".join(words)
    assert {flag: uses for flag, uses in meanings.items() if len(uses) > 1} == {}
    assert {"-b", "-d", "-f", "-n", "-p", "-s", "-K", "-X"} <= meanings.keys()


def _help(*words: str, flag: str = "--help") -> str:
    result = CliRunner().invoke(app, [*words, flag], terminal_width=_HELP_COLUMNS)
    assert result.exit_code == 0, result.output
    return result.stdout


@every_command
def test_help_fits_a_screen(words: tuple[str, ...]) -> None:
    lines = _help(*words).splitlines()
    assert len(lines) <= _HELP_LINES_MAX
    assert max(map(len, lines)) <= _HELP_COLUMNS
    assert "Examples:" in lines
    assert lines[-1].startswith("  ")
    assert _help(*words, flag="-h").splitlines() == lines


def test_help_of_a_group_lists_its_commands() -> None:
    for words, entry in ENTRIES.items():
        shown = _help(*words[:-1])
        assert f"{words[-1]} " in shown
        assert entry.summary[:40] in shown


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "--help"], ["topic"], []])
def test_help_of_groups_imports_no_command(arguments: list[str]) -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from varve.cli.main import app\n"
        f"print(CliRunner().invoke(app, {arguments}).output)\n"
        "names = ('numba', 'numpy', 'confluent_kafka', 'typer', 'rich', 'varve.cli.')\n"
        "print([name for name in sys.modules if name.startswith(names)])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    *shown, imported = result.stdout.strip().splitlines()
    assert "varve" in shown[0]
    assert imported == "['varve.cli.command', 'varve.cli.main']"


def test_help_of_a_command_imports_neither_engine_nor_libraries() -> None:
    """All in one process: what any of them imports would be seen."""
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from varve.cli.main import app\n"
        f"for words in {list(ENTRIES)}:\n"
        "    assert CliRunner().invoke(app, [*words, '--help']).exit_code == 0\n"
        f"    found = [name for name in {_HEAVY} if name in sys.modules]\n"
        "    assert not found, (words, found)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    ("arguments", "needed"),
    [
        (["job", "report", "REPORT"], {"rich"}),
        (["topic", "list", "-b", "127.0.0.1:1"], {"confluent_kafka"}),
        (["group", "list", "-b", "127.0.0.1:1"], {"confluent_kafka"}),
        (["shape", "list", "-u", "http://127.0.0.1:1"], set()),
        (["check", "--list-rules"], None),
        (["serve", "--config", "/nowhere"], None),
        (["job", "query", "orders", "-d", "/nowhere"], None),
    ],
)
def test_a_command_imports_only_what_it_needs(
    arguments: list[str], needed: set[str] | None, tmp_path: Path
) -> None:
    """`needed` are the libraries that it may load; None for the engine's, but never Spark's."""
    report = tmp_path / "report.json"
    report.write_text(json.dumps(_REPORT))
    arguments = [str(report) if word == "REPORT" else word for word in arguments]
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from varve.cli.main import app\n"
        f"result = CliRunner().invoke(app, {arguments})\n"
        "assert result.exit_code in (0, 1), result.output\n"
        f"print(*[name for name in {_HEAVY} if name in sys.modules])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    allowed = _ENGINE if needed is None else needed
    assert set(result.stdout.split()) <= allowed
