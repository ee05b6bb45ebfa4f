"""The benchmarks and the soak can be started; `make check-tools` runs their own tests."""

import runpy
import sys

import pytest
from click.testing import CliRunner

from benchmarks.command import run
from benchmarks.suites import SUITES


def test_the_benchmarks_are_listed_with_their_measures() -> None:
    result = CliRunner().invoke(run, [])
    assert result.exit_code == 0, result.output
    listed = result.output.split()
    assert len(SUITES) == 8
    for suite in SUITES:
        assert suite.measures
        assert {suite.name, *(measure.name for measure in suite.measures)} <= set(listed)


@pytest.mark.parametrize("module", ["benchmarks", "tools.soak", "tools.soak.shapes"])
def test_a_program_has_help(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(module, run_name="__main__")
    assert ended.value.code == 0
    assert "usage" in capsys.readouterr().out.lower()
