"""`varve demo`: a real kill, and every acknowledged record found again (G1)."""

import re
from pathlib import Path

import pytest

import varve
from tests.support.varve_command import run_varve
from varve.cli.demo import find_lost, make_order


def test_a_killed_writer_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    directory = tmp_path / "kept"
    arguments = ["demo", "--dir", str(directory), "--records", "20000"]
    lines = run_varve(*arguments, "--json").rows
    steps = {line["step"]: line for line in lines}
    assert {line["type"] for line in lines} == {"step"}
    assert steps["compare"]["lost"] == 0
    assert steps["compare"]["found"] >= steps["kill"]["acknowledged"] >= 9_000
    # A kill may tear a batch too; then that is cut with what the demo appends.
    cut = re.search(r"orders-0: cut (\d+) bytes", steps["recover"]["recovered"][0])
    assert cut is not None
    assert int(cut[1]) >= 777
    cleaned = steps["clean"]
    assert cleaned["is_clean"]
    assert cleaned["records"]["superseded"] > 15_000
    assert sum(cleaned["records"].values()) == 20_000
    assert cleaned["bytes_after"] < cleaned["bytes_before"] / 5
    assert steps["tier"]["local_bytes"] < steps["tier"]["remote_bytes"]
    assert steps["read"]["read"] == steps["compare"]["found"]
    with varve.open(directory) as store:
        assert store.recovered == {}
        assert sum(1 for _ in store.topic("orders").read()) == steps["read"]["read"]
        assert store.topic("balances").get(steps["get"]["key"]) is not None
    assert "new or an empty" in run_varve(*arguments, code=1).stderr


def test_people_see_the_steps_and_what_to_try_next() -> None:
    result = run_varve("demo", "--records", "1000")
    lines = result.stdout.splitlines()
    steps = [line.split()[1] for line in lines if re.match(r"\d+\. ", line)]
    assert steps == [
        "Write",
        "Kill",
        "Tear",
        "Recover",
        "Compare",
        "Update",
        "Clean",
        "Get",
        "Tier",
        "Read",
    ]
    for text in (
        "none lost",
        "█",
        "Try next; the first command keeps",
        "  varve audit -d demo-data",
    ):
        assert text in result.stdout
    assert max(map(len, lines)) <= 160


@pytest.mark.parametrize(
    ("written", "acknowledged", "lost"),
    [(range(100), 100, 0), (range(100), 101, 1), (range(1, 101), 100, 1), (range(0), 3, 3)],
)
def test_a_lost_record_would_be_noticed(
    tmp_path: Path, written: range, acknowledged: int, lost: int
) -> None:
    with varve.open(tmp_path) as store:
        topic = store.create_topic("orders", partitions=2)
        topic.append_many(map(make_order, written))
        assert find_lost(topic, acknowledged) == (len(written), lost)
