"""Runs `varve` in the process of the test, which says how it has to end.

run = partial(run_varve, "tier")
(report,) = run("copy", "-d", data, "--json").rows
assert "add --yes" in run("fsck", "-d", data, "--sweep", code=1).told
"""

import json
from typing import Any

from click.testing import CliRunner, Result

from varve.cli.main import app


class Ran:
    """What a command printed."""

    def __init__(self, result: Result) -> None:
        self.stdout = result.stdout
        self.stdout_bytes = result.stdout_bytes
        self.stderr = result.stderr
        self.output = result.output

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The objects on the lines of a command with --json."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def shown(self) -> str:
        """The standard output in one line."""
        return " ".join(self.stdout.split())

    @property
    def told(self) -> str:
        """The standard error in one line, without frames."""
        return " ".join(self.stderr.replace("\u2502", " ").split())


def run_varve(
    *words: object, code: int = 0, input: bytes | str | None = None, **environment: str | None
) -> Ran:
    """Fails where the command ends with another code, or with an exception."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=input, env=environment)
    assert result.exit_code == code, f"{words} ended with {result.exit_code}: {result.output}"
    assert isinstance(result.exception, SystemExit | None), repr(result.exception)
    return Ran(result)
