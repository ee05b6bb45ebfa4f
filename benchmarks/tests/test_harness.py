"""The benchmark harness, with measures that cost nothing."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

import pytest

from benchmarks import command
from benchmarks.harness import plan_cases, run_cases
from benchmarks.machine import describe_commit, describe_machine
from benchmarks.measure import Contest, MeasureSkipped, Outcome, Scale, Suite, at_least, at_most
from benchmarks.report import Clock, json_line, make_row
from benchmarks.sampling import (
    FULL_POLICY,
    QUICK_POLICY,
    QUICK_SECONDS,
    Budget,
    RepeatPolicy,
    sample,
    summarize,
)
from benchmarks.sizes import Size, SizeUnit, format_bytes, parse_size, parse_size_argument
from benchmarks.workspace import Workspace, open_workspace
from varve.foundation.errors import DiskFull, InvalidRequest

KEYS = ["measure", "size", "ours", "baseline", "unit", "ratio", "aim", "met", "machine", "commit"]
SPREADS = ["ours_spread", "baseline_spread"]


@dataclass
class FakeTime:
    """A ticker that moves only when a fake measure spends time."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def spend(self, seconds: float, figure: float = 1.0) -> Callable[[], float]:
        def call() -> float:
            self.now += seconds
            return figure

        return call


@dataclass
class FakeMeasure:
    """Takes `seconds` per figure on each side."""

    time: FakeTime
    name: str = "fake"
    title: str = "a fake"
    size_unit: SizeUnit = SizeUnit.BYTES
    seconds: float = 0.1
    contest_count: int = 1
    prepared: list[int] = field(default_factory=list)
    obstacle: str = ""

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (1024,) if quick else (1024, 2048)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        if self.obstacle:
            raise MeasureSkipped(self.obstacle)
        self.prepared.append(size)
        self.time.now += self.seconds
        ours, baseline = self.time.spend(self.seconds, 4.0), self.time.spend(self.seconds, 2.0)
        yield [Contest(self.name, "x/s", ours, baseline, at_least(2))] * self.contest_count


def contest_of(ours: Callable[[], float], baseline: Callable[[], float] | None) -> Contest:
    return Contest("fake", "x/s", ours, baseline, at_least(1))


def outcome_of(ours: Sequence[float], baseline: Sequence[float], contest: Contest) -> Outcome:
    return Outcome(contest, Size(16 << 10, SizeUnit.BYTES), tuple(ours), tuple(baseline))


def run_fakes(
    measures: Sequence[FakeMeasure],
    time: FakeTime,
    tmp_path: Path,
    total_seconds: float | None,
    skipped: Callable[[str], None] = lambda text: None,
) -> list[Outcome]:
    suite = Suite("fakes", "fakes", tuple(measures))
    cases = plan_cases(suite, [], quick=total_seconds is not None)
    with open_workspace(tmp_path) as workspace:
        return list(
            run_cases(
                cases,
                workspace,
                Scale(volume_bytes=1024, batch_bytes=(1024,)),
                policy=QUICK_POLICY,
                budget=Budget(len(cases), time, total_seconds=total_seconds),
                ticker=time,
                progress=lambda text: None,
                skipped=skipped,
            )
        )


def run_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    with pytest.raises(SystemExit) as ended:
        command.main(started=perf_counter())
    return ended.value.code


@pytest.mark.parametrize(
    ("text", "amount", "unit"),
    [
        ("16KiB", 16384, SizeUnit.BYTES),
        ("1 MiB", 1 << 20, SizeUnit.BYTES),
        ("2gib", 2 << 30, SizeUnit.BYTES),
        ("100B", 100, SizeUnit.BYTES),
        ("10000", 10_000, SizeUnit.COUNT),
        ("10,000", 10_000, SizeUnit.COUNT),
        ("10_000", 10_000, SizeUnit.COUNT),
    ],
)
def test_sizes_are_read_with_their_unit(text: str, amount: int, unit: SizeUnit) -> None:
    assert parse_size(text) == Size(amount, unit)


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "0KiB", "16KB", "1.5MiB", "9999999GiB"])
def test_bad_size_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match="size"):
        parse_size(text)


@pytest.mark.parametrize("amount", [1, 100, 1024, 16384, 1 << 20, 3 << 30, (1 << 20) + 1])
def test_formatted_size_reads_back(amount: int) -> None:
    assert parse_size(format_bytes(amount)).amount == amount


def test_size_argument_names_a_measure_or_none() -> None:
    named = parse_size_argument("append=16KiB,1MiB")
    assert (named.measure, [size.amount for size in named.sizes]) == ("append", [16384, 1 << 20])
    listed = parse_size_argument("16KiB,128KiB,100B").sizes
    assert [size.amount for size in listed] == [16 << 10, 128 << 10, 100]
    bare = parse_size_argument("1,000,10,000")
    assert (bare.measure, [size.amount for size in bare.sizes]) == (None, [1000, 10_000])


@pytest.mark.parametrize("text", ["=16KiB", "append=", ","])
def test_size_argument_without_name_or_size_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_size_argument(text)


def test_asked_sizes_replace_those_of_their_measure_only() -> None:
    time = FakeTime()
    suite = Suite("s", "s", (FakeMeasure(time, "a"), FakeMeasure(time, "b")))
    cases = plan_cases(suite, [parse_size_argument("a=4KiB")], quick=True)
    assert [(case.measure.name, case.size.amount) for case in cases] == [("a", 4096), ("b", 1024)]


def test_bare_size_goes_to_every_measure_of_its_unit() -> None:
    time = FakeTime()
    counted = FakeMeasure(time, "c", size_unit=SizeUnit.COUNT)
    suite = Suite("s", "s", (FakeMeasure(time, "a"), FakeMeasure(time, "b"), counted))
    cases = plan_cases(suite, [parse_size_argument("4KiB")], quick=True)
    assert [case.size.amount for case in cases] == [4096, 4096, 1024]


@pytest.mark.parametrize("text", ["nothing=4KiB", "a=4000", "4000"])
def test_size_that_no_measure_can_use_is_refused(text: str) -> None:
    suite = Suite("s", "s", (FakeMeasure(FakeTime(), "a"),))
    with pytest.raises(InvalidRequest):
        plan_cases(suite, [parse_size_argument(text)], quick=True)


def test_unknown_measure_is_refused_with_the_known_ones() -> None:
    suite = Suite("s", "s", (FakeMeasure(FakeTime(), "a"),))
    with pytest.raises(InvalidRequest, match="choose from a"):
        plan_cases(suite, [], only=["z"], quick=True)


def test_summary_is_the_median_and_the_range_as_its_share() -> None:
    figures = summarize([10.0, 12.0, 50.0])
    assert figures.median == 12.0
    assert figures.spread == pytest.approx(40 / 12)


def test_repeats_alternate_and_the_first_pair_is_thrown_away() -> None:
    calls: list[str] = []

    def call(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    contest = contest_of(lambda: call("A"), lambda: call("B"))
    policy = RepeatPolicy(repeat_count_min=3, repeat_count_max=3)
    ours, baseline = sample(contest, policy, ticker=FakeTime(), deadline=0.0)
    assert "".join(calls) == "ABABABAB"
    assert ours == (3.0, 5.0, 7.0)
    assert len(baseline) == 3


def test_repeats_end_with_the_time_but_not_below_the_minimum() -> None:
    time = FakeTime()
    contest = contest_of(time.spend(1.0), time.spend(1.0))
    policy = RepeatPolicy(repeat_count_min=2, repeat_count_max=50)
    assert len(sample(contest, policy, ticker=time, deadline=9.0)[0]) == 4
    assert len(sample(contest, policy, ticker=time, deadline=0.0)[0]) == 2


def test_spent_budget_leaves_one_pair() -> None:
    time = FakeTime()
    contest = contest_of(time.spend(1.0), time.spend(1.0))
    ours, _ = sample(contest, FULL_POLICY, ticker=time, deadline=0.0, is_spent=lambda: True)
    assert len(ours) == 1


def test_budget_hands_unused_time_to_later_cases() -> None:
    time = FakeTime()
    budget = Budget(3, time, total_seconds=30.0)
    assert budget.begin_case() == 10.0
    time.now = 2.0
    assert budget.begin_case() == 16.0
    time.now = 40.0
    assert budget.begin_case() == 40.0
    assert budget.is_spent


@pytest.mark.parametrize("seconds", [0.001, 0.1, 0.4])
def test_quick_run_keeps_its_budget(seconds: float, tmp_path: Path) -> None:
    time = FakeTime()
    measures = [FakeMeasure(time, f"m{i}", seconds=seconds, contest_count=2) for i in range(6)]
    outcomes = run_fakes(measures, time, tmp_path, QUICK_SECONDS)
    assert len(outcomes) == 12
    assert time.now <= 45.0


def test_every_case_is_prepared_once_and_reported(tmp_path: Path) -> None:
    time = FakeTime()
    measure = FakeMeasure(time)
    outcomes = run_fakes([measure], time, tmp_path, None)
    assert measure.prepared == [1024, 2048]
    assert [str(outcome.size) for outcome in outcomes] == ["1 KiB", "2 KiB"]


def test_measure_that_cannot_be_taken_is_told_once_and_the_others_go_on(tmp_path: Path) -> None:
    time, told = FakeTime(), list[str]()
    measures = [FakeMeasure(time, "a", obstacle="no Java"), FakeMeasure(time, "b")]
    outcomes = run_fakes(measures, time, tmp_path, None, told.append)
    assert told == ["a: no Java"]
    assert [outcome.contest.measure for outcome in outcomes] == ["b", "b"]


def test_json_line_has_the_agreed_keys_in_order() -> None:
    contest = contest_of(lambda: 0.0, lambda: 0.0)
    row = make_row(outcome_of([3.0, 4.0, 5.0], [2.0, 2.0, 2.0], contest))
    shown = json.loads(json_line(row, machine="m", commit="c"))
    assert list(shown) == KEYS + SPREADS
    assert (shown["size"], shown["ours"], shown["baseline"]) == ("16 KiB", 4.0, 2.0)
    assert (shown["ratio"], shown["aim"], shown["met"]) == (2.0, ">= 1", True)
    assert (shown["ours_spread"], shown["baseline_spread"]) == (0.5, 0.0)


@pytest.mark.parametrize(
    ("unit", "shown"), [("s", "s (CPU)"), ("x/s", "x/s (CPU)"), ("B/segment", "B/segment")]
)
def test_cpu_time_shows_in_the_unit(unit: str, shown: str) -> None:
    outcome = outcome_of([1.0], [], Contest("fake", unit, lambda: 0.0, None))
    assert make_row(outcome, clock=Clock.CPU).unit == shown
    of_the_wall = outcome_of([1.0], [], Contest("fake", unit, lambda: 0.0, None, is_wall_time=True))
    assert make_row(of_the_wall, clock=Clock.CPU).unit == unit
    assert make_row(outcome).unit == unit


def test_second_size_stands_beside_the_first() -> None:
    contest = Contest("fake", "x/s", lambda: 0.0, None, within="1 MiB")
    assert make_row(outcome_of([1.0], [], contest)).size == "16 KiB in 1 MiB"


def test_figure_without_baseline_has_no_ratio_and_no_verdict() -> None:
    contest = Contest("memory", "B", lambda: 0.0, None)
    shown = json.loads(json_line(make_row(outcome_of([7.0], [], contest)), machine="", commit=""))
    assert [shown[key] for key in ("baseline", "ratio", "aim", "met")] == [None] * 4


@pytest.mark.parametrize(("aim", "met"), [(at_least(2.5), False), (at_most(2.5), True)])
def test_missed_aim_is_stated_and_not_raised(aim: object, met: bool) -> None:
    contest = Contest("fake", "s", lambda: 0.0, lambda: 0.0, aim)  # type: ignore[arg-type]
    assert make_row(outcome_of([2.0], [1.0], contest)).met is met


def test_workspace_is_removed_after_an_error(tmp_path: Path) -> None:
    def fail() -> None:
        with open_workspace(tmp_path) as workspace:
            (workspace.root / "left").write_bytes(b"x")
            raise RuntimeError("the measure failed")

    with pytest.raises(RuntimeError):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_workspace_refuses_a_case_larger_than_the_disk(tmp_path: Path) -> None:
    with open_workspace(tmp_path) as workspace, pytest.raises(DiskFull, match="--directory"):
        workspace.require(1 << 62)


def test_machine_and_commit_are_stated(tmp_path: Path) -> None:
    assert "cores" in describe_machine()
    assert describe_commit(tmp_path) == "unknown"
    assert describe_commit()


def test_command_lists_suites_without_a_name(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_command(monkeypatch)
    assert "hot_log" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["nothing"],
        ["hot_log", "16KB"],
        ["hot_log", "--measure", "nothing"],
        ["hot_log", "--batch-bytes", "1GiB"],
        ["hot_log", "--codec", "zip"],
        ["hot_log", "--unique-share", "0"],
        ["hot_log", "--segment-bytes", "1KiB"],
    ],
)
def test_bad_argument_ends_with_a_named_error(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err.startswith("InvalidRequest: ")


def test_command_prints_json_lines_and_leaves_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Suite("fakes", "fakes", (FakeMeasure(FakeTime(), seconds=100.0),))
    monkeypatch.setattr(command, "SUITES", (suite,))
    run_command(monkeypatch, "fakes", "--json", "--quick", "--directory", str(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["measure"] for line in lines] == ["fake"]
    assert list(tmp_path.iterdir()) == []


def test_command_prints_a_table_for_people(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    suite = Suite("fakes", "fakes", (FakeMeasure(FakeTime()),))
    monkeypatch.setattr(command, "SUITES", (suite,))
    run_command(monkeypatch, "all", "--directory", str(tmp_path))
    shown = capsys.readouterr().out
    assert "fake" in shown
    assert "cores" in shown


def test_terminated_run_removes_its_files(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from benchmarks import command as c\n"
        "from benchmarks.workspace import open_workspace\n"
        "with c._ending_cleanly_on_sigterm(), open_workspace(Path(sys.argv[1])):\n"
        "    print('ready', flush=True); time.sleep(30)\n"
    )
    root = Path(command.__file__).parent.parent
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], cwd=root, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    with process, process.stdout as output:
        assert output.readline() == b"ready\n"
        process.send_signal(signal.SIGTERM)
    assert process.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []
