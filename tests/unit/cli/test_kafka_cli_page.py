"""docs/how-to/produce-and-consume.md: every command on it prints what the page says."""

import re
import shlex
import subprocess
from pathlib import Path

from click.testing import CliRunner

from varve.broker.settings import GroupSettings, SecuritySettings
from varve.cli.main import app
from varve.foundation.clock import SystemClock
from varve.kafka_server.config import make_config
from varve.testing.kafka_kit import KafkaKit

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "produce-and-consume.md"
_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(text: str) -> list[tuple[str, str]]:
    """Commands and what they print, in the order of the page."""
    found: list[tuple[str, list[str]]] = []
    for block in _BLOCK.findall(text):
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append((line[2:], []))
            else:
                found[-1][1].append(line)
    return [(command, "\n".join(lines)) for command, lines in found]


def make_kit() -> KafkaKit:
    """A broker with the defaults that `varve serve` has, and with the time of its clients."""
    return KafkaKit(
        settings=make_config({}, [], default_directory="data").store,
        now_ms=SystemClock().now_ms(),
        groups=GroupSettings(group_initial_rebalance_delay_ms=0),
        security=SecuritySettings(authorizer_enable=True, super_users="User:ANONYMOUS"),
    )


def run(kit: KafkaKit, command: str) -> str:
    """What a command prints; what stands before a pipe is the shell's."""
    first, pipe, second = command.partition(" | varve ")
    given = None
    if pipe:
        given = subprocess.run(["sh", "-c", first], capture_output=True, check=True).stdout
    arguments = shlex.split(f"varve {second}" if pipe else command)[1:]
    result = CliRunner().invoke(app, arguments, input=given, env={"VARVE_BOOTSTRAP": kit.bootstrap})
    text = result.output.replace(kit.bootstrap, "localhost:9092")
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_the_commands_print_what_the_page_shows() -> None:
    found = examples(PAGE.read_text())
    assert len(found) > 25
    with make_kit() as kit:
        for command, printed in found:
            assert run(kit, command) == printed, command
