"""Commands that read a store do not make the directory that a URL names."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

import varve
from varve.cli.main import app


@pytest.mark.parametrize("command", [["fsck"], ["restore", "topic", "-d", "data"]])
def test_a_directory_that_is_missing_is_told_of_and_not_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, ["tier", *command, "--store", f"file:{tmp_path}/typo"])
    assert done.exit_code != 0
    assert "typo is missing" in " ".join(done.output.replace("\u2502", " ").split())
    assert list(tmp_path.iterdir()) == []


def test_a_mirror_is_not_compared_with_a_first_store_that_is_missing(tmp_path: Path) -> None:
    """It would seem to hold nothing, and all in the mirror to be too much."""
    data, first, second = (str(tmp_path / name) for name in ("data", "first", "second"))
    with varve.open(data, maintain=False) as store:
        store.create_topic("t", settings={"remote.storage.enable": True}).append(value=b"1")
    stores = ["--store", f"file:{first}", "--mirror", f"file://{second}/"]
    done = CliRunner().invoke(app, ["tier", "copy", "-d", data, *stores, "--roll"])
    assert done.exit_code == 0, done.output
    os.rename(first, f"{first}.away")
    done = CliRunner().invoke(app, ["tier", "mirror", "-d", data, *stores, "--repair", "--yes"])
    assert done.exit_code != 0
    assert "first is missing" in " ".join(done.output.replace("\u2502", " ").split())
    assert not os.path.exists(first)
