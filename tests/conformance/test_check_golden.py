"""A check finds nothing wrong in what a real broker wrote, and a repair keeps its records."""

import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.conformance.tools.golden_reader import GOLDENS, NAMES, latest_timestamp
from tests.support.directory_check import check_log_directory
from varve.cli.main import app
from varve.commit_log.check import Severity
from varve.disk import RealFileSystem


@pytest.mark.parametrize("golden", NAMES)
def test_a_real_brokers_directory_has_notes_at_most(golden: str) -> None:
    findings = check_log_directory(
        RealFileSystem(),
        str(GOLDENS / golden / "data"),
        now_ms=latest_timestamp(golden),
        deep=True,
        lock=False,
    )
    assert [finding for finding in findings if finding.severity is not Severity.NOTE] == []


@pytest.mark.parametrize("golden", NAMES)
def test_a_repair_leaves_every_batch_in_place(golden: str, tmp_path: Path) -> None:
    source, copy = GOLDENS / golden / "data", tmp_path / "data"
    shutil.copytree(source, copy)
    for index in copy.glob("*/*.index"):
        index.unlink()
    result = CliRunner().invoke(app, ["check", "--repair", "--deep", "-d", str(copy)])
    assert result.exit_code == 0, result.stdout
    assert f"After: {copy}: nothing found" in result.stdout
    for path in source.glob("*/*.log"):
        # Only the zeros behind a preallocated file go.
        mended = (copy / path.relative_to(source)).read_bytes()
        assert path.read_bytes().rstrip(b"\0") == mended.rstrip(b"\0")
