"""What is due follows from settings and what was run; runs are noted, failures wait longer."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import varve
from varve.cli.main import app
from varve.commit_log import LogSettings
from varve.disk import MemoryFileSystem, RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import Corrupt, InvalidSetting, Locked, StoreUnavailable
from varve.foundation.settings import GivenValue
from varve.jobs import schedule
from varve.jobs.schedule import (
    FIRST_PAUSE_MS,
    JOBS_FILE,
    LOCK_FILE,
    JobContext,
    JobName,
    LastRun,
    list_jobs,
    plan_jobs,
    read_runs,
    run_due,
    write_runs,
)
from varve.jobs.tasks import LocalRunner

HOUR_MS = 3_600_000
NOW_MS = 1_700_000_000_000
COMPACTED: dict[str, GivenValue] = {
    "cleanup.policy": "compact",
    "remote.storage.enable": True,
    "varve.job.compact.interval.ms": HOUR_MS,
}


def compacted() -> LogSettings:
    return LogSettings(
        cleanup_policy=("compact",),
        remote_storage_enable=True,
        varve_job_compact_interval_ms=HOUR_MS,
    )


def plan_after(last: LastRun | None, now_ms: int = NOW_MS) -> tuple[bool, int]:
    runs = {} if last is None else {(JobName.COMPACT, "orders"): last}
    (one,) = plan_jobs({"orders": compacted()}, runs, now_ms)
    return one.is_due, one.next_ms


def test_a_job_is_due_when_it_never_ran_and_an_interval_after_it_began() -> None:
    assert plan_after(None)[0]
    last = LastRun(started_ms=NOW_MS, ended_ms=NOW_MS + 60_000)
    assert plan_after(last, NOW_MS + HOUR_MS - 1) == (False, NOW_MS + HOUR_MS)
    assert plan_after(last, NOW_MS + HOUR_MS)[0]


def test_failures_wait_twice_as_long_each_time_up_to_the_interval() -> None:
    def pause_ms(failures: int) -> int:
        last = LastRun(started_ms=NOW_MS, ended_ms=NOW_MS, error="no", failures=failures)
        return plan_after(last)[1] - NOW_MS

    found = [pause_ms(failures) for failures in (1, 2, 3, 6, 7, 5000)]
    assert found == [FIRST_PAUSE_MS, 2 * FIRST_PAUSE_MS, 4 * FIRST_PAUSE_MS, 1_920_000] + 2 * [
        HOUR_MS
    ]


def test_a_clock_that_was_set_back_does_not_stop_jobs() -> None:
    assert plan_after(LastRun(started_ms=NOW_MS + 1, ended_ms=NOW_MS + 2))[0]


def test_what_the_settings_do_not_allow_is_never_due_and_says_why() -> None:
    settings = LogSettings(varve_job_compact_interval_ms=1, varve_job_verify_interval_ms=1)
    jobs = plan_jobs({"plain": settings}, {}, NOW_MS)
    assert [(one.is_due, "remote.storage.enable" in one.why) for one in jobs] == [(False, True)] * 2
    assert plan_jobs({"silent": LogSettings()}, {}, NOW_MS) == []


def test_a_job_at_intervals_must_be_told_where() -> None:
    with pytest.raises(InvalidSetting, match=r"varve\.job\.snapshot\.place"):
        LogSettings(varve_job_snapshot_interval_ms=1)
    with pytest.raises(InvalidSetting, match=r"varve\.job\.table\.name"):
        LogSettings(varve_job_table_interval_ms=1, varve_job_table_warehouse="/w")


def test_runs_are_read_as_written_and_broken_notes_are_named() -> None:
    fs = MemoryFileSystem(ManualClock(NOW_MS))
    fs.make_directory("data")
    runs = {
        (JobName.VERIFY, "a"): LastRun(started_ms=1, ended_ms=2, error="lost", failures=3),
        (JobName.COMPACT, "b"): LastRun(started_ms=4, ended_ms=5),
    }
    write_runs(fs, "data", runs)
    assert read_runs(fs, "data") == runs
    for content in ("[]", "{}", '{"format": 1, "jobs": {"verify": {"a": {"at": 1}}}}'):
        with fs.open_writable(f"data/{JOBS_FILE}") as file:
            file.truncate(0)
            file.write_at(0, content.encode())
        with pytest.raises(Corrupt, match="every job is due then"):
            read_runs(fs, "data")


@pytest.fixture
def data(tmp_path: Path) -> str:
    """Two topics, of which one cannot be verified in any cold tier."""
    path = str(tmp_path / "data")
    with varve.open(path, maintain=False) as store:
        store.create_topic("orders", settings=COMPACTED)
        store.create_topic("state", settings={**COMPACTED, "varve.job.compact.interval.ms": 1})
    return path


def test_each_job_runs_once_and_a_failure_does_not_stop_the_next(
    data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = []
    clock = ManualClock(NOW_MS)

    def run(context: JobContext) -> tuple[object, str | None]:
        ran.append(context.topic)
        clock.advance(1000)
        if context.topic == "orders":
            raise StoreUnavailable("the bucket does not answer")
        return {"records": 7}, None

    monkeypatch.setattr(schedule, "RUNNERS", {JobName.COMPACT: run})
    outcomes = run_due(data, LocalRunner(), clock=clock)
    assert ran == ["orders", "state"]
    assert [one.run.error for one in outcomes] == ["the bucket does not answer", None]
    assert outcomes[1].to_json()["result"] == {"records": 7}
    clock.advance(FIRST_PAUSE_MS)
    run_due(data, LocalRunner(), clock=clock)
    assert ran == ["orders", "state", "state", "orders"], "who has waited longest goes first"
    noted = read_runs(RealFileSystem(), data)
    assert noted[JobName.COMPACT, "orders"].failures == 2


def test_jobs_are_run_beside_a_store_that_is_open(data: str, tmp_path: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.alter_topic(
            "state",
            {
                "varve.job.snapshot.interval.ms": HOUR_MS,
                "varve.job.snapshot.place": f"{tmp_path}/snapshots",
                "varve.job.verify.interval.ms": HOUR_MS,
            },
        )
        topic = store.topic("state")
        for number in range(40):
            topic.append(key=f"k{number % 4}", value=f"value {number}")
    assert CliRunner().invoke(app, ["tier", "copy", "-d", data, "state", "--roll"]).exit_code == 0
    with varve.open(data, maintain=False):
        outcomes = run_due(data, LocalRunner())
    found = {(one.job.value, one.topic): one.run.error for one in outcomes}
    assert "holds no topic 'orders'" in str(found.pop(("compact", "orders")))
    assert found == {(job, "state"): None for job in ("compact", "snapshot", "verify")}
    assert any((tmp_path / "snapshots").rglob("*.parquet"))


def test_one_runner_at_a_time(data: str) -> None:
    with (
        RealFileSystem().lock(f"{data}/{LOCK_FILE}"),
        pytest.raises(Locked, match="another scheduler"),
    ):
        run_due(data, LocalRunner(), clock=ManualClock(NOW_MS))


def test_defaults_hold_for_topics_that_say_nothing(data: str) -> None:
    jobs = list_jobs(data, NOW_MS, defaults={"varve.job.verify.interval.ms": 5})
    assert {(one.job.value, one.topic) for one in jobs} == {
        (job, topic) for job in ("compact", "verify") for topic in ("orders", "state")
    }


def test_the_command_lists_what_is_due_and_why(data: str) -> None:
    listed = CliRunner().invoke(app, ["job", "due", "--dir", data, "--json"])
    assert listed.exit_code == 0, listed.stderr
    jobs = [json.loads(line) for line in listed.stdout.splitlines()]
    assert [(one["topic"], one["is_due"], one["why"]) for one in jobs] == [
        ("orders", True, "it has never run"),
        ("state", True, "it has never run"),
    ]
    write_runs(
        RealFileSystem(),
        data,
        {(JobName.COMPACT, "orders"): LastRun(started_ms=1, ended_ms=2, error="lost", failures=1)},
    )
    shown = CliRunner().invoke(app, ["job", "due", "--dir", data])
    assert "lost" in shown.stdout
    assert "again after 1 failure" in shown.stdout
