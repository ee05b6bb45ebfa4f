"""The `varve` command: its table, how quick it is, how failures become codes."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import varve
from tests.support.forked_commands import VARVE, CommandServers
from varve.cli import main
from varve.foundation.errors import Corrupt, Locked
from varve.testing.kafka_kit import KafkaKit


def _run(*arguments: str) -> Any:
    return CliRunner().invoke(main.app, list(arguments))


def test_without_arguments_the_first_commands_to_try_are_shown() -> None:
    result = _run()
    assert (result.exit_code, result.stderr) == (0, "")
    assert "varve demo " in result.stdout
    assert "varve --help" in result.stdout


def _failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Any:
    def fail() -> None:
        raise error

    monkeypatch.setitem(main.app.entries, "consume", click.Command("consume", callback=fail))
    return _run("consume")


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (Locked("somebody [bold]has[/] it"), 1, "error: somebody [bold]has[/] it\n"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 1, "error: /x: Permission"),
        (OSError("no errno"), 1, "error: no errno\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_a_failure_becomes_a_message_and_a_code(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, message: str
) -> None:
    result = _failing(monkeypatch, error)
    assert result.exit_code == code
    assert result.stderr.startswith(message)
    assert "Traceback" not in result.output


@pytest.mark.parametrize(("cause", "code"), [(KeyboardInterrupt, 130), (EOFError, 1)])
def test_an_interrupt_at_a_prompt_exits_like_any_other(
    monkeypatch: pytest.MonkeyPatch, cause: type[BaseException], code: int
) -> None:
    def answer(*_: Any, **__: Any) -> str:
        raise cause

    monkeypatch.setattr("click.termui.visible_prompt_func", answer)
    monkeypatch.setitem(
        main.app.entries,
        "consume",
        click.Command("consume", callback=lambda: click.confirm("Go on?", abort=True)),
    )
    with pytest.raises(SystemExit) as exited:
        main.app(["consume"], prog_name="varve")
    assert exited.value.code == code


def test_a_bug_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(_failing(monkeypatch, ZeroDivisionError()).exception, ZeroDivisionError)


def test_a_reader_that_leaves_ends_the_command_quietly(
    commands: CommandServers, tmp_path: Path
) -> None:
    with varve.open(tmp_path) as store:
        topic = store.create_topic("numbers")
        topic.append_many((None, b"%d" % number) for number in range(50_000))
    with subprocess.Popen(
        [*VARVE, "consume", "numbers", "--dir", str(tmp_path)],
        env={**os.environ, **commands.variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as reader:
        assert reader.stdout is not None
        assert reader.stderr is not None
        assert reader.stdout.readline() == b"0\n"
        reader.stdout.close()
        complaint = reader.stderr.read()
    assert (reader.returncode, complaint) == (main.READER_LEFT, b"")


def test_an_interrupt_ends_a_follower_with_130(commands: CommandServers) -> None:
    environment = {**os.environ, **commands.variables}
    with KafkaKit() as kit:
        consume = [*VARVE, "consume", "numbers", "--follow", "--bootstrap", kit.bootstrap]
        for command in (["topic", "create", "numbers"], ["produce", "numbers"]):
            arguments = [*command, "--bootstrap", kit.bootstrap]
            assert CliRunner().invoke(main.app, arguments, input="1\n").exit_code == 0
        with subprocess.Popen(
            consume, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == b"1\n"
            reader.send_signal(signal.SIGINT)
            _, complaint = reader.communicate(timeout=60)
    assert (reader.returncode, complaint) == (130, b"")


@pytest.mark.parametrize("encoding", ["ascii", "utf-8:strict"])
def test_output_that_the_terminal_cannot_show_ends_no_command(
    tmp_path: Path, encoding: str
) -> None:
    directory = os.fsencode(tmp_path) + b"/no text \xff \xc3\xa4"
    os.mkdir(directory)
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0", "LC_ALL": "C"}
    environment["PYTHONCOERCECLOCALE"] = "0"
    result = subprocess.run(
        [sys.executable, "-m", "varve", "check", "-d", directory],
        env=environment,
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, b"")
    assert b"missing-meta-properties" in result.stdout


@pytest.mark.parametrize(
    ("told", "has_hint"),
    [
        ("00.log: batch at 7 is broken", True),
        ("run `varve check` on it", False),
        ("catalog.db is damaged: restore it from a copy", False),
        ("not an Avro schema: correct the registry", False),
    ],
)
def test_varve_check_is_named_only_where_it_helps(
    monkeypatch: pytest.MonkeyPatch, told: str, has_hint: bool
) -> None:
    result = _failing(monkeypatch, Corrupt(told))
    assert (result.exit_code, main._CHECK_HINT in result.stderr) == (1, has_hint)
