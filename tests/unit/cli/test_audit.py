"""`varve audit` shows the removals on record, names what is wrong, and answers by its status."""

from functools import partial
from pathlib import Path

import pytest

from tests.support.audit_bench import AuditBench
from tests.support.varve_command import run_varve
from varve.cleaning.removals.audit import AUDIT_RULES
from varve.cli.check import DEFAULT_LIMIT
from varve.disk import RealFileSystem

run = partial(run_varve, "audit")


@pytest.fixture
def bench(tmp_path: Path) -> AuditBench:
    bench = AuditBench(RealFileSystem(), str(tmp_path / "data"))
    bench.write(9, [9])
    bench.compact([bench.write(0, [0, 1, 2]), bench.write(3, [3, 4])], [2, 4])
    other = AuditBench(bench.fs, bench.path, "payments-1")
    other.write(5, [5])
    other.expire([other.write(0, [0, 1, 2])])
    return bench


def test_removals_are_shown_with_what_went_and_why(bench: AuditBench) -> None:
    result = run("-d", bench.path)
    assert "2023-11-14 22:13:20" in result.stdout
    assert "3 superseded" in result.stdout
    assert "carried out, 1 of 1 verified" in result.stdout
    assert "cleanup.policy compact" in result.stdout
    assert "3 older than retention.ms" in result.stdout
    head = bench.audit().head
    assert (
        f"orders-0: 1 removal on record, 3 records removed, 1 segment of "
        f"{bench.audit().bytes_verified:,} bytes verified, nothing wrong; head {head[:12]}..."
    ) in result.stdout
    assert "payments-1: 1 removal on record, 3 records removed" in result.stdout


@pytest.mark.parametrize("arguments", [("orders",), ("orders:0",)])
def test_one_topic_or_partition_is_chosen(bench: AuditBench, arguments: tuple[str, ...]) -> None:
    result = run(*arguments, "-d", bench.path)
    assert "orders-0: " in result.stdout
    assert "payments-1" not in result.stdout


def test_the_partitions_of_several_directories_are_audited_in_order(
    bench: AuditBench, tmp_path: Path
) -> None:
    other = AuditBench(bench.fs, str(tmp_path / "more"), "orders-1")
    other.write(0, [0])
    shown = run("-d", bench.path, "-d", tmp_path / "more").stdout
    names = [line.split(":")[0] for line in shown.splitlines() if " on record" in line]
    assert names == ["orders-0", "orders-1", "payments-1"]


def test_a_finding_is_shown_and_the_status_is_one(bench: AuditBench) -> None:
    bench.change_line(1, b'"superseded":3', b'"superseded":2')
    result = run("-d", bench.path, code=1)
    assert "unbalanced" in result.stdout
    assert "line 1: the chain says" in result.stdout
    assert "2 errors" in result.stdout


def test_json_has_removals_findings_and_a_summary(bench: AuditBench) -> None:
    bench.write(0, [2])
    result = run("--json", "-d", bench.path, "orders", code=1)
    removal, finding, summary = result.rows
    assert removal["type"] == "removal"
    assert removal["records"] == {"kept": 2, "superseded": 3}
    assert removal["outcome"] == "carried out"
    assert finding["type"] == "finding"
    assert (finding["severity"], finding["rule"], finding["id"]) == ("error", "output-changed", 1)
    assert summary["type"] == "summary"
    assert summary["is_clean"] is False
    assert {one["topic"] for one in (removal, finding, summary)} == {"orders"}


def test_an_earlier_head_must_still_be_there(bench: AuditBench) -> None:
    head = bench.audit().head
    run("--head", head, "orders:0", "-d", bench.path)
    result = run("--head", "f" * 64, "orders:0", "-d", bench.path, code=1)
    assert "its end was cut" in result.stdout
    result = run("--head", head, "-d", bench.path, code=2)
    assert "TOPIC:PARTITION" in result.stderr


def test_only_the_newest_are_shown_unless_more_are_asked_for(bench: AuditBench) -> None:
    for _ in range(DEFAULT_LIMIT):
        bench.evidence.append(bench.expiry([bench.write(9, [9])]))
    result = run("orders", "-d", bench.path)
    assert "1 earlier removal not shown; --limit shows more" in result.stdout
    assert "superseded" not in result.stdout
    assert "superseded" in run("-n", DEFAULT_LIMIT + 1, "orders", "-d", bench.path).stdout
    none = run("--limit", 0, "orders", "-d", bench.path).stdout
    assert f"{DEFAULT_LIMIT + 1} earlier removals not shown" in none


def test_rules_are_listed() -> None:
    result = run("--list-rules")
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(AUDIT_RULES)


def test_deep_without_a_topic_id_says_that_keys_were_not_compared(bench: AuditBench) -> None:
    result = run("--deep", "orders", "-d", bench.path)
    assert "keys are not compared" in result.stdout


@pytest.mark.parametrize("columns", ["80", "200"])
def test_the_rule_and_the_outcome_are_below_each_row(
    bench: AuditBench, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    table = run("orders", "-d", bench.path).stdout.split("orders-0:")[0].rstrip("\n")
    shown = [line.rstrip() for line in table.splitlines() if line.strip(" ─")]
    assert max(map(len, shown)) <= int(columns)
    assert "    outcome  carried out, 1 of 1 verified" in shown
    assert "cleanup.policy compact" in table
