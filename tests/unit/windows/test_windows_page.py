"""The example of docs/explanation/windows.md runs and prints what it says."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "windows.md"


def test_the_example_prints_what_its_comments_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = PAGE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        exec(example, {})
        said = re.findall(r"print\(.*\)  # ([^:\n]+)", example)
        assert capsys.readouterr().out.splitlines() == said
