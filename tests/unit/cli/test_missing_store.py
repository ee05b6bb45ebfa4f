"""Commands that read a store do not make the directory that a URL names."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from varve.cli.main import app


@pytest.mark.parametrize("command", [["fsck"], ["restore", "data", "topic"]])
def test_a_directory_that_is_missing_is_told_of_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["tier", *command, "--store", f"file:{tmp_path}/typo"])
    assert done.exit_code != 0
    assert "typo is missing" in " ".join(done.output.replace("\u2502", " ").split())
    assert list(tmp_path.iterdir()) == []
