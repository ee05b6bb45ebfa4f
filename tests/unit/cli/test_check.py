"""`varve check` says what is broken, mends it when told, and answers by its exit status."""

from functools import partial
from pathlib import Path

import pytest

from tests.check_builder import ROOT, TOPIC_ID, build_store
from tests.support.varve_command import run_varve
from varve.cleaning.key_index.builder import build_key_index
from varve.commit_log.segment import Segment, SegmentFiles
from varve.disk import RealFileSystem
from varve.embedded.topic_table import TOPICS_FILE

run = partial(run_varve, "check")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    fs, _ = build_store()
    root = tmp_path / "data"
    (root / "orders-0").mkdir(parents=True)
    for info in fs.scan(ROOT):
        if not info.is_directory:
            (root / info.name).write_bytes(fs.read(f"{ROOT}/{info.name}"))
    for name in fs.names(f"{ROOT}/orders-0"):
        (root / "orders-0" / name).write_bytes(fs.read(f"{ROOT}/orders-0/{name}"))
    return root


def damage(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(bytes(data))


def test_a_clean_directory_exits_with_zero(store: Path) -> None:
    result = run("--deep", "-d", store, store / "orders-0")
    assert result.stdout.splitlines() == [
        f"{store}: nothing found",
        f"{store / 'orders-0'}: nothing found",
    ]


def test_findings_are_shown_as_a_table(store: Path) -> None:
    (store / "orders-0" / "00000000000000000029.index").unlink()
    result = run("-d", store, code=1)
    assert "missing-index" in result.stdout
    assert "orders-0/00000000000000000029.index" in result.stdout
    assert f"{store}: 1 error\n" in result.stdout


def test_findings_are_shown_as_json(store: Path) -> None:
    damage(store / "orders-0" / "00000000000000000029.log", 100)
    result = run("--json", store / "orders-0", code=1)
    document = next(found for found in result.rows if found["rule"] == "batch-crc")
    assert document["severity"] == "error"
    assert document["stage"] == "before"
    assert document["position"] == 0
    assert document["path"].endswith("00000000000000000029.log")
    assert "--allow-data-loss" in document["repair"]


def test_a_partition_on_the_command_line_beats_the_directory_of_the_environment(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VARVE_DIR", str(store / "none"))
    assert run(store / "orders-0").stdout == f"{store / 'orders-0'}: nothing found\n"


def test_a_repair_shows_before_and_after(store: Path) -> None:
    (store / "orders-0" / "00000000000000000029.index").unlink()
    result = run("--repair", "-d", store)
    assert f"Before: {store}: 1 error\n" in result.stdout
    assert "repaired" in result.stdout
    assert f"After: {store}: nothing found" in result.stdout


def test_data_is_cut_only_when_allowed_and_kept_beside_the_log_directory(store: Path) -> None:
    path = store / "orders-0" / "00000000000000000083.log"
    whole = path.read_bytes()
    damage(path, len(whole) - 3)
    damaged = path.read_bytes()
    refused = run("--repair", "-d", store, code=1)
    assert "refused" in refused.stdout
    assert path.read_bytes() == damaged
    result = run("--repair", "--allow-data-loss", "-d", store)
    kept = list((store.parent / "varve-quarantine" / "orders-0").iterdir())
    assert len(kept) == 1
    assert path.read_bytes() + kept[0].read_bytes() == damaged
    assert kept[0].name in result.stdout
    assert run("-d", store).stdout == f"{store}: nothing found\n"


def test_a_refusal_says_how_much_of_which_segments_would_be_dropped(store: Path) -> None:
    names = sorted(path.name for path in (store / "orders-0").glob("*.log"))
    sizes = [(store / "orders-0" / name).stat().st_size for name in names]
    damage(store / "orders-0" / names[1], 100)
    result = run("--repair", "--json", "-d", store, code=1)
    (refused,) = [found["message"] for found in result.rows if found["type"] == "refused"]
    assert f"{sum(sizes[1:])} bytes of data would be dropped (needs --allow-data-loss)" in refused
    assert f"of {len(names) - 1} segments: " in refused
    assert all(f"{name} whole" in refused for name in names[1:])
    assert names[0] not in refused


@pytest.fixture
def keys(store: Path) -> Path:
    """The key index of the first segment, as the cleaner would make it."""
    directory = store / "orders-0"
    first = min(directory.glob("*.log"))
    fs = RealFileSystem()
    segment = Segment(
        SegmentFiles(fs), str(directory), base_offset=int(first.stem), size=first.stat().st_size
    )
    build_key_index(fs, segment, topic_id=TOPIC_ID.bytes, aborted=())
    return first.with_suffix(".keys")


def rules_of(*arguments: object, code: int = 0) -> dict[str, tuple[str, str]]:
    found = run("--json", *arguments, code=code).rows
    return {one["rule"]: (one["severity"], one["message"]) for one in found}


def test_a_whole_key_index_is_no_finding(store: Path, keys: Path) -> None:
    assert run("--deep", "-d", store).stdout == f"{store}: nothing found\n"


@pytest.mark.parametrize("position", [3, 60, -5], ids=["magic", "header", "content"])
def test_a_damaged_key_index_is_noted_by_a_deep_check(
    store: Path, keys: Path, position: int
) -> None:
    damage(keys, position)
    assert rules_of("-d", store) == {}
    severity, message = rules_of("--deep", "-d", store)["key-index-corrupt"]
    assert severity == "note"
    assert message.endswith("; rebuilt at the next use")
    run("--deep", "-d", store)


def test_a_cut_key_index_is_noted_by_a_deep_check(store: Path, keys: Path) -> None:
    keys.write_bytes(keys.read_bytes()[:-7])
    assert list(rules_of("--deep", store / "orders-0")) == ["key-index-corrupt"]


def test_a_key_index_of_other_data_is_noted_by_a_deep_check(store: Path, keys: Path) -> None:
    other = sorted((store / "orders-0").glob("*.log"))[1].with_suffix(".keys")
    other.write_bytes(keys.read_bytes())
    assert rules_of("--deep", "-d", store)["key-index-stale"][0] == "note"


def test_a_directory_in_place_of_a_key_index_is_an_error(store: Path) -> None:
    min((store / "orders-0").glob("*.log")).with_suffix(".keys").mkdir()
    assert rules_of("-d", store, code=1)["not-a-file"][0] == "error"
    assert rules_of("--deep", "-d", store, code=1)["not-a-file"][0] == "error"


def test_damaged_append_times_are_noted(store: Path) -> None:
    path = store / "orders-0" / "varve-append-times"
    damage(path, 1)
    path.write_bytes(path.read_bytes() + b"torn")
    severity, message = rules_of("-d", store)["append-times-corrupt"]
    assert severity == "note"
    assert message.startswith("1 of ")
    assert "4 trailing bytes are not a whole entry" in message


def test_the_quarantine_can_be_elsewhere(store: Path, tmp_path: Path) -> None:
    path = store / "orders-0" / "00000000000000000083.log"
    path.write_bytes(path.read_bytes()[:-5])
    elsewhere = tmp_path / "elsewhere"
    run("--repair", "--allow-data-loss", "--quarantine", elsewhere, "-d", store)
    assert [p.name[:28] for p in elsewhere.rglob("*.cut-*")] == ["00000000000000000083.log.cut"]
    assert not (store.parent / "varve-quarantine").exists()


def test_a_partition_without_a_log_directory_around_it_is_checked_and_mended(
    store: Path, tmp_path: Path
) -> None:
    alone = (store / "orders-0").rename(tmp_path / "orders-0")
    run(alone)
    (alone / "00000000000000000029.index").unlink()
    run(alone, code=1)
    run("--repair", alone)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "orders-0"]


def test_a_directory_in_use_is_refused(store: Path) -> None:
    lock = RealFileSystem().lock(f"{store}/.lock")
    try:
        result = run("-d", store, code=1)
        assert "is in use by this process" in result.stderr
        unlocked = run("--no-lock", "-d", store)
        assert "not locked" in unlocked.stderr
    finally:
        lock.release()


def test_the_rules_can_be_listed() -> None:
    result = run("--list-rules")
    assert "batch-crc" in result.stdout


def test_a_relative_path_keeps_the_quarantine_outside(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = store / "orders-0" / "00000000000000000083.log"
    path.write_bytes(path.read_bytes()[:-5])
    monkeypatch.chdir(store)
    run("--repair", "--allow-data-loss", "-d", ".")
    assert (store.parent / "varve-quarantine").is_dir()
    assert not (store / "varve-quarantine").exists()


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"format": 1, "version": 1}'])
def test_a_broken_table_of_topics_is_found_and_not_guessed(store: Path, content: bytes) -> None:
    (store / TOPICS_FILE).write_bytes(content)
    for arguments in (("-d", store), ("--repair", "-d", store)):
        result = run(*arguments, code=1)
        assert "topics-corrupt" in result.stdout
    assert (store / TOPICS_FILE).read_bytes() == content
