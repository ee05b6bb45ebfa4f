"""`varve demo`: a real kill, and every acknowledged record found again (G1)."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

import varve
from varve.cli import demo
from varve.cli.demo_compaction import show_compaction
from varve.cli.demo_stream import record_at
from varve.cli.main import app
from varve.cli.segment_picture import draw_segments, topic_facts


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    place = tmp_path / "kept"
    arguments = ["demo", "--dir", str(place), "--records", "20000", "--seed", "3", "--json"]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["lost"] == 0
    assert summary["found"] >= summary["acknowledged"] >= 9_000
    # A kill may tear a batch too; then that goes with what the demo tears.
    cut = re.search(r"cut (\d+) bytes", summary["recovered"]["demo-0"][0])
    assert cut is not None
    assert int(cut[1]) >= 777
    assert sum(segment["size"] for segment in summary["segments"]) > 500_000
    compaction = summary["compaction"]
    assert compaction["lost"] == 0
    assert compaction["balance"]["is_clean"]
    assert compaction["records"]["superseded"] > 15_000
    after = sum(compaction["segments_after"].values())
    assert after < sum(compaction["segments_before"].values()) / 5
    tiering = summary["tiering"]
    assert tiering["is_same"]
    assert tiering["records"] == summary["found"]
    assert tiering["hot_bytes"] <= tiering["hot_bytes_before"] == tiering["cold_bytes"]
    with varve.open(place) as store:
        assert store.recovered == {}
        assert sum(1 for _ in store.topic("demo").read()) == summary["found"]


def test_a_lost_record_would_be_noticed(tmp_path: Path) -> None:
    with varve.open(tmp_path) as store:
        topic = store.create_topic("demo", partitions=2)
        topic.append_many(record_at(1, number) for number in range(100))
        whole = demo._Outcome(str(tmp_path), 1, 100)
        whole.end_offsets = [partition.offsets().end for partition in topic.partitions]
        demo._compare(whole, topic)
        assert (whole.found, whole.lost) == (100, 0)
        lacking = demo._Outcome(str(tmp_path), 1, 101)
        lacking.end_offsets = [whole.end_offsets[0] + 1, whole.end_offsets[1]]
        demo._compare(lacking, topic)
        assert lacking.lost == 1
        changed = demo._Outcome(str(tmp_path), 2, 100)
        changed.end_offsets = whole.end_offsets
        demo._compare(changed, topic)
        assert changed.lost > 90


def test_what_compaction_leaves_is_shown_and_looked_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with varve.open(tmp_path, maintain=False) as store:
        outcome = show_compaction(store, 5, 30_000, Console(width=100))
        found = store.topic("balances").get(outcome.key)
    assert found is not None
    assert found.value == outcome.value.encode()
    assert outcome.balance["inputs"] == sum(outcome.balance["reasons"].values()) == 30_000
    drawn = capsys.readouterr().out
    for word in ("6. Update", "7. Clean", "8. Balance", "it adds up", "none lost", "10. Get"):
        assert word in drawn
    assert "█" in drawn


def test_a_directory_with_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").touch()
    result = CliRunner().invoke(app, ["demo", "--dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "new or an empty" in result.stderr


def test_the_picture_has_a_bar_for_each_segment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with varve.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=2, settings={"segment.bytes": 300})
        for number in range(8):
            topic.append(value=b"x" * 50, timestamp_ms=number, partition=0)
        facts = topic_facts(topic)
        Console(width=80).print(draw_segments("orders", facts))
    drawn = capsys.readouterr().out
    assert [fact.base_offset for fact in facts if fact.partition == 0] == [0, 2, 4, 6]
    assert [fact.is_active for fact in facts] == [False, False, False, True, True]
    assert [fact.batch_count for fact in facts] == [2, 2, 2, 2, 0]
    assert "orders-0" in drawn
    assert "orders-1" in drawn
    assert sum("█████" in line for line in drawn.splitlines()) == 4
    assert max(map(len, drawn.splitlines())) <= 80
