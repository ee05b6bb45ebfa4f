"""docs/how-to/choose-topic-settings.md shows the settings and tables of the examples."""

import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "how-to" / "choose-topic-settings.md").read_text(encoding="utf-8")
NAMES = sorted(path.stem for path in (ROOT / "examples" / "topic_classes").glob("*.py"))


def _section(name: str) -> str:
    parts = [part for part in PAGE.split("\n## ") if f"topic_classes/{name}.py\n" in part]
    assert len(parts) == 1, f"{len(parts)} sections show {name}.py"
    return parts[0]


def _as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_there_are_six_classes() -> None:
    assert len(NAMES) == 6


@pytest.mark.parametrize("name", NAMES)
def test_the_settings_of_a_class_are_those_of_its_example(name: str) -> None:
    settings = import_module(f"examples.topic_classes.{name}").SETTINGS
    told = dict(re.findall(r"^\| `([^`]+)` \| `([^`]+)`", _section(name), re.MULTILINE))
    assert told == {key: _as_text(value) for key, value in settings.items()}


@pytest.mark.parametrize("name", NAMES)
def test_the_table_of_a_class_is_what_its_example_prints(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"examples/topic_classes/{name}.py"
    runpy.run_path(str(ROOT / command), run_name="__main__")
    assert f"```console\n$ python {command}\n{capsys.readouterr().out}```" in _section(name)
