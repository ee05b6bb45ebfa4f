"""What each page needs before its first example, and the examples that cannot run here.

A set-up is shell commands. `{...}` of a placeholder is a text of the page and what stands for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SetUp:
    """The state in which a reader comes to a page."""

    commands: str = ""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    needs_bucket: bool = False
    """Whether `s3://bucket` must exist; a server on loopback has it."""


SET_UPS: dict[str, SetUp] = {
    "docs/how-to/produce-and-consume.md": SetUp(
        environment={"VARVE_GROUP_INITIAL_REBALANCE_DELAY_MS": "0"},
    ),
}
"""By page; a page that is not here needs an empty directory."""

_INSTALLS = "installs packages: the tests run in an environment that has them"
_OTHER_BROKER = "names a broker of the reader's"

NOT_RUN: dict[str, dict[str, str]] = {
    "docs/tutorial/first-records.md": {
        "python3 -m venv": _INSTALLS,
        ". venv/bin/activate": _INSTALLS,
        "pip install": _INSTALLS,
    },
    "docs/how-to/produce-and-consume.md": {
        "varve topic list -b kafka.example.com": _OTHER_BROKER,
        "varve consume orders --json -b old": _OTHER_BROKER,
    },
    "README.md": {
        ". .venv": _INSTALLS,
        "make run": "sets up the machine; `make run` is run by hand for each release",
    },
}
"""By page, the begin of each example that does not run, and the reason.

The command lines among them are parsed by tests/unit/cli/test_mentioned_commands.py.
"""
