"""A report is shown with its steps and stages; anything else is refused by name."""

import json
from pathlib import Path

import pytest

from tests.support.varve_command import Ran, run_varve
from varve.jobs.tier.bucket import StoreCount
from varve.spark.stages import JobReport, RemoteStage, StageReport, StepReport

STAGE = StageReport(
    stage=3,
    attempt=0,
    name="rewrite",
    status="complete",
    started_ms=1500,
    duration_ms=500,
    tasks=7,
    failed_tasks=0,
    run_ms=900,
    read_rows=11,
    read_bytes=12,
    shuffle_read_bytes=0,
    shuffle_written_bytes=2048,
    written_rows=0,
    written_bytes=0,
    spilled_bytes=0,
)
STEP = StepReport("rewrite", 7, 0, 1500, 500, StoreCount(9, 3 << 20, 1 << 20))


def show(path: Path, content: str, code: int = 0) -> Ran:
    path.write_text(content)
    return run_varve("job", "report", path, code=code, COLUMNS="120")


def report(**changes: object) -> JobReport:
    fields: dict[str, object] = {
        "job": "compact",
        "application": "app-1",
        "started_ms": 1000,
        "duration_ms": 1000,
        "rows": None,
        "stages": (STAGE,),
        "steps": (STEP,),
    }
    return JobReport(**(fields | changes))  # type: ignore[arg-type]  # fields by name


def test_steps_and_stages_are_shown_with_when_they_ran(tmp_path: Path) -> None:
    shown = show(tmp_path / "report", json.dumps(report().to_document()))
    assert "3.0 MiB" in shown.stdout
    bars = [line.split()[-1] for line in shown.stdout.splitlines() if "█" in line]
    assert bars == ["·" * 12 + "█" * 12] * 2, "the second half of the job"
    assert "note" not in shown.stdout
    (document,) = run_varve("job", "report", tmp_path / "report", "--json").rows
    assert document == {"type": "report", **json.loads((tmp_path / "report").read_text())}


def test_what_is_not_told_over_connect_is_said(tmp_path: Path) -> None:
    stage = RemoteStage(1, "query", 4, 4, 0)
    document = report(stages=(), steps=(), rows=5, remote_stages=(stage,)).to_document()
    assert document["tasks"] == 4
    shown = show(tmp_path / "report", json.dumps(document))
    assert "over Spark Connect" in shown.stdout
    assert "not reported" in shown.stdout, "none shuffled would be a claim"
    assert "--estimate" in shown.stdout


@pytest.mark.parametrize("content", ["", "[]", '{"job": 1}', '{"format": 1, "job": 1}'])
def test_anything_else_is_refused(tmp_path: Path, content: str) -> None:
    assert "not the report of a job" in show(tmp_path / "report", content, code=1).stderr
