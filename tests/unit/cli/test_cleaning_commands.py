"""`varve clean`, `get`, `explain`, `forecast` and `metrics` on one directory of keyed topics."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import Ran, run_varve
from varve.cleaning.metrics import CleanProgress
from varve.cli.clean import format_change
from varve.cli.output import interrupts_between
from varve.commit_log import TopicPartition
from varve.foundation.clock import ManualClock

Run = Callable[..., Ran]
DAY_MS = 86_400_000
YEAR_2026 = 1_767_225_600_000
FAR_MS = 40_000 * DAY_MS  # later than any clock of a machine that runs this


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Scores: ten records over five keys, one deleted; visits: old ones and one of the future."""
    clock = ManualClock(YEAR_2026)
    compacted: dict[str, str | int] = {"cleanup.policy": "compact", "retention.time": "append"}
    with varve.open(tmp_path, maintain=False, clock=clock) as store:
        scores = store.create_topic("scores", settings=compacted)
        keys = ["k1", "k2", "k1", "k3", "k4", "k1", "k2", "k3", "k5", "k1"]
        for number, key in enumerate(keys):
            scores.append(key=key, value=None if number == 6 else f"v{number}")
        scores.partition().log.roll()
        kept: dict[str, str | int] = {"retention.time": "event", "retention.ms": DAY_MS}
        visits = store.create_topic("visits", partitions=2, settings=kept)
        for timestamp in (YEAR_2026, FAR_MS):
            visits.append(value="v", partition=1, timestamp_ms=timestamp)
            visits.partition(1).log.roll()
    return tmp_path


@pytest.fixture
def run(data: Path) -> Run:
    return partial(run_varve, VARVE_DIR=str(data))


def _offsets(data: Path, topic: str, partition: int = 0) -> list[int]:
    with varve.open(data, maintain=False) as store:
        return [record.offset for record in store.topic(topic).read(partition=partition)]


def test_clean_compacts_and_expires_everything_that_is_due(run: Run, data: Path) -> None:
    result = run("clean")
    assert "scores-0  1 of 2 segments compacted" in result.stdout
    assert "5 records kept, 5 superseded" in result.stdout
    assert "visits-0  nothing to do" in result.stdout
    assert "visits-1  1 segment deleted" in result.stdout
    assert "older than retention.ms" in result.stdout
    assert _offsets(data, "scores") == [4, 6, 7, 8, 9]
    assert not list(data.glob("*/*.deleted"))
    assert _offsets(data, "visits", 1) == [1]
    assert "nothing to compact" in run("clean", "scores").stdout


def test_a_dry_run_tells_and_leaves_it(run: Run, data: Path) -> None:
    result = run("clean", "--dry-run")
    assert "1 of 2 segments would be compacted" in result.stdout
    assert "1 segment would be deleted" in result.stdout
    assert len(_offsets(data, "scores")) == 10
    assert _offsets(data, "visits", 1) == [0, 1]


def test_clean_tells_a_program_everything(run: Run) -> None:
    scores, _, visits = run("clean", "--json").rows
    assert scores["type"] == "cleaning"
    assert (scores["partition"], scores["dry_run"], scores["error"]) == ("scores-0", False, None)
    assert scores["compaction"]["records"] == {"kept": 5, "superseded": 5}
    assert scores["compaction"]["segments_rewritten"] == 1
    assert visits["compaction"] is None
    (expired,) = visits["expiry"]["segments"]
    assert (expired["base_offset"], expired["reason"]) == (0, "older than retention.ms")


def test_clean_takes_one_partition_and_rolls_when_asked(run: Run, data: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.topic("scores").append(key="k1", value="newest")
    assert [one["partition"] for one in run("clean", "visits:1", "--json").rows] == ["visits-1"]
    (report,) = run("clean", "scores:0", "--roll", "--json").rows
    assert report["compaction"]["end_offset"] == 11
    assert _offsets(data, "scores") == [4, 6, 7, 8, 10]


def test_a_damaged_segment_is_left_alone_and_told(run: Run, data: Path) -> None:
    with (data / "scores-0" / "00000000000000000000.log").open("r+b") as file:
        file.seek(70)
        file.write(b"damage")
    result = run("clean", "--json", code=1)
    assert "segment 0" in result.stderr
    scores, _, visits = result.rows
    assert scores["compaction"]["holds"][0]["base_offset"] == 0
    assert visits["expiry"] is not None


def test_an_interrupt_is_taken_between_two_chunks() -> None:
    progress = CleanProgress(TopicPartition("t", 0), "copy", 0, 1)
    seen: list[str] = []

    def work() -> None:
        with interrupts_between(lambda progress: seen.append("shown")) as check:
            check(progress)
            os.kill(os.getpid(), signal.SIGINT)
            seen.append("the chunk is finished")
            check(progress)
            seen.append("not reached")

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert seen == ["shown", "the chunk is finished"]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_process_that_ignores_interrupts_goes_on_doing_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_between(lambda progress: None) as check:
            os.kill(os.getpid(), signal.SIGINT)
            check(CleanProgress(TopicPartition("t", 0), "copy", 0, 1))
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupted_clean_exits_with_130_and_loses_nothing(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"cleanup.policy": "compact", "segment.bytes": 20_000}
    with varve.open(tmp_path, maintain=False) as store:
        topic = store.create_topic("scores", settings=settings)
        topic.append_many(((f"k{n % 100}", "v" * 100) for n in range(2000)), codec="none")
        latest = {record.key: record.offset for record in topic.read()}
    script = (
        "import os, signal, sys\n"
        "from varve.cli import main, output\n"
        "def show(bar, title, done_bytes, total_bytes):\n"
        "    if 'copy' in title: os.kill(os.getpid(), signal.SIGINT)\n"
        "output.Progress.show = show\n"
        "main.main()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, "clean", "--dir", str(tmp_path)],
        capture_output=True,
        check=False,
    )
    assert result.returncode == 130
    assert result.stderr == b"stopped; nothing is lost, run it again to continue\n"
    with varve.open(tmp_path, maintain=False) as store:
        found = {record.key: record.offset for record in store.topic("scores").read()}
    assert found == latest
    assert not list((tmp_path / "scores-0").glob("*.cleaned"))


def test_get_prints_the_latest_value(run: Run, data: Path) -> None:
    assert run("get", "scores", "k1").stdout == "v9\n"
    assert run("get", "scores", "azE=", "--key-encoding", "base64").stdout == "v9\n"
    assert run("get", "scores", "6b31", "--key-encoding", "hex").stdout == "v9\n"
    (record,) = run("get", "scores", "k1", "--json").rows
    assert (record["offset"], record["key"], record["value"]) == (9, "k1", "v9")


def test_get_fails_with_a_sentence_when_there_is_none_or_it_is_deleted(run: Run) -> None:
    missing = run("get", "scores", "k9", code=1)
    assert missing.stdout == ""
    assert missing.stderr == "error: topic scores has no record with key 'k9'\n"
    deleted = run("get", "scores", "k2", code=1)
    assert deleted.stdout == ""
    assert "was deleted by offset 6 of partition 0" in deleted.stderr
    shown = run("get", "scores", "k2", "--json", code=1)
    assert shown.rows[0]["value"] is None
    run("get", "scores", "!", "--key-encoding", "base64", code=2)


def test_explain_tells_what_became_of_a_record(run: Run) -> None:
    superseded = run("explain", "scores", "--offset", "0")
    assert "scores-0 offset 0: superseded by offset 9" in superseded.stdout
    assert "compaction  can remove it: at its next pass" in superseded.stdout
    assert "cleanup.policy=compact" in superseded.stdout
    newest = run("explain", "scores", "--key", "k1")
    assert "scores-0 offset 9: newest value of its key" in newest.stdout
    (record,) = run("explain", "scores", "--key", "k2", "--json").rows
    assert (record["offset"], record["is_tombstone"]) == (6, True)
    assert record["compaction"]["blocks"][0]["rule"] == "delete.retention.ms"
    assert "no record with key 'k9'" in run("explain", "scores", "--key", "k9", code=1).stderr
    run("explain", "scores", "--key", "k1", "--offset", "1", code=2)
    assert "no record has offset 99" in run("explain", "scores", "--offset", "99", code=1).stderr


def test_explain_lists_all_segments(run: Run) -> None:
    result = run("explain", "visits:1")
    rows = [line.split() for line in result.stdout.splitlines() if not line.startswith(" ")]
    assert [row[:2] for row in rows[1:]] == [
        ["visits-1", "0"],
        ["visits-1", "1"],
        ["visits-1", "2"],
    ]
    first = run("explain", "visits", "--json").rows[1]
    assert (first["partition"], first["base_offset"]) == ("visits-1", 0)
    assert first["retention"]["by"] == "retention"


def test_forecast_shows_what_goes_when_under_which_policy(run: Run, data: Path) -> None:
    result = run("forecast")
    assert "visits-1" in result.stdout
    assert "bytes are left now, " in result.stdout
    scores, _, visits = run("forecast", "--json").rows
    assert scores["stale_bytes"] > 0
    assert scores["kept_bytes"] == scores["size"]
    assert 0 < visits["due_now_bytes"] < visits["size"]
    (kept,) = run("forecast", "visits:1", "--set", "retention.ms=-1", "--json").rows
    assert (kept["due_now_bytes"], kept["kept_bytes"]) == (0, kept["size"])
    assert "with retention.ms=-1" in run("forecast", "--set", "retention.ms=-1").stdout
    assert "did you mean" in run("forecast", "--set", "retention.m=1", code=1).stderr
    assert _offsets(data, "visits", 1) == [0, 1]


def test_the_store_of_several_disks_is_one(tmp_path: Path) -> None:
    disks = [tmp_path / "one", tmp_path / "two"]
    with varve.open(disks, maintain=False) as store:
        topic = store.create_topic("t", partitions=4, settings={"cleanup.policy": "compact"})
        for number in range(40):
            topic.append(key=f"k{number}", value=f"v{number}")
    where = ["-d", str(disks[0]), "-d", str(disks[1])]
    for command in (["clean", "--roll"], ["explain", "t"], ["forecast"], ["audit"], ["check"]):
        run_varve(*command, *where)
    for number in range(40):
        found = run_varve("get", "t", f"k{number}", VARVE_DIR=f"{disks[0]}:{disks[1]}")
        assert found.stdout == f"v{number}\n"


def test_metrics_are_printed_as_json_lines(run: Run) -> None:
    labels = {"partition": "0", "topic": "scores"}
    end = {"type": "metric", "name": "varve_log_end_offset", "labels": labels, "value": 10.0}
    assert end in run("metrics", "--json").rows


def test_without_a_directory_the_remedy_names_the_ways_to_give_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VARVE_DIR", raising=False)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    result = run_varve("get", "scores", "k1", code=2)
    assert "--dir or VARVE_DIR" in result.stderr
    copy = shutil.copytree(data, elsewhere / "varve-data", ignore=shutil.ignore_patterns("else*"))
    assert run_varve("get", "scores", "k1").stdout == "v9\n"
    monkeypatch.setenv("VARVE_DIR", str(copy / "none"))
    run_varve("get", "scores", "k1", code=1)


def test_metrics_are_printed_as_prometheus_reads_them(run: Run) -> None:
    result = run("metrics")
    assert "varve_cleaner_max_dirty_percent 100.0\n" in result.stdout
    assert 'varve_log_end_offset{partition="0",topic="scores"} 10.0\n' in result.stdout
    assert 'varve_log_segments{partition="1",topic="visits"} 3.0\n' in result.stdout
    assert "varve_cleaner_uncleanable_bytes{" not in result.stdout
    assert "varve_cleaner_uncleanable_partitions{" not in result.stdout


def test_a_dry_run_leaves_to_compaction_what_is_decided_after_it(run: Run, data: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.alter_topic("scores", {"cleanup.policy": "compact,delete", "retention.ms": "1"})
    result = run("clean", "scores", "--dry-run")
    assert "1 segment from offset 0 on, past retention: decided after" in result.stdout
    assert "would be deleted" not in result.stdout
    (told,) = run("clean", "scores", "--dry-run", "--json").rows
    assert told["expiry"] is None
    assert [one["base_offset"] for one in told["undecided"]] == [0]


@pytest.mark.parametrize("columns", ["80", "100", "130"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "visits"],
        ["explain", "scores", "--offset", "0"],
        ["forecast", "--set", "retention.ms=10000000000000"],
    ],
)
def test_what_is_shown_fits_the_screen(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: str, arguments: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    shown = run(*arguments).stdout
    assert max(len(line.rstrip()) for line in shown.splitlines()) <= int(columns)
    assert "…" not in shown
    monkeypatch.delenv("COLUMNS")
    assert max(len(line.rstrip()) for line in run(*arguments).stdout.splitlines()) <= 100


def test_a_forecast_has_bars_where_the_log_shrinks_step_by_step(run: Run, data: Path) -> None:
    with varve.open(data, maintain=False) as store:
        store.topic("visits").append(value="v", partition=0, timestamp_ms=FAR_MS // 2)
    assert "█" in run("forecast", "visits", "--set", "retention.ms=8000000000000").stdout


def test_a_forecast_whose_bars_would_be_the_same_is_one_line(run: Run) -> None:
    shown = run(
        "forecast", "visits", "--set", "retention.ms=0", "--set", "retention.bytes=0"
    ).stdout
    assert "█" not in shown
    assert "after retention 0 of" in shown


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        (100, 26, "74 % less"),
        (100, 104, "4 % more"),
        (10_000, 3, "99.9 % less"),
        (1000, 3, "99.7 % less"),
        (100, 0, "100 % less"),
        (10_000, 9_999, "0.1 % less"),
        (5, 5, "as before"),
    ],
)
def test_a_change_is_told_as_more_or_less(before: int, after: int, text: str) -> None:
    assert format_change(before, after) == text


def test_an_offset_beyond_the_log_is_told_with_those_there_are(run: Run, data: Path) -> None:
    assert "the log holds 0 to 9;" in run("explain", "scores", "--offset", "10", code=1).stderr
    assert "the log is empty" in run("explain", "visits:0", "--offset", "0", code=1).stderr
    several = run("explain", "visits", "--offset", "0", code=1)
    assert "TOPIC:PARTITION, from visits:0 to visits:1" in several.stderr


def test_get_looks_in_one_partition(run: Run) -> None:
    assert run("get", "scores", "k1", "-p", "0").stdout == "v9\n"
    assert "no partition 3" in run("get", "scores", "k1", "-p", "3", code=1).stderr


def test_a_removed_record_leads_to_the_audit(run: Run) -> None:
    run("clean", "scores")
    assert "`varve audit scores:0`" in run("explain", "scores", "--offset", "0").stdout


def test_a_held_segment_is_explained_without_a_time_of_retry(run: Run, data: Path) -> None:
    with (data / "scores-0" / "00000000000000000000.log").open("r+b") as file:
        file.seek(70)
        file.write(b"damage")
    shown = " ".join(run("explain", "scores").stdout.split())
    assert "held after 1 attempt, it is damaged" in shown


def test_compaction_of_records_without_a_key_is_warned_of(run: Run) -> None:
    alter = ("topic", "alter", "visits", "-s")
    assert "compaction removes those without a key" in run(*alter, "cleanup.policy=compact").stderr
    assert run(*alter, "cleanup.policy=compact").stderr == ""
    lags = run(*alter, "min.compaction.lag.ms=9", "-s", "max.compaction.lag.ms=8", code=1).stderr
    assert "LogSettings" not in lags
