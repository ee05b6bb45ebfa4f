"""`varve tier mirror`, and the mirror in `varve tier copy` and `varve tier status`."""

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import varve
from tests.support.varve_command import Ran, run_varve
from varve.cli.output import Progress
from varve.cli.where import TierWhere
from varve.embedded.store_settings import split_store_settings
from varve.object_store import open_object_store

run = partial(run_varve, "tier")


class Place:
    def __init__(self, root: Path) -> None:
        self.data = str(root / "data")
        self.first = f"file:{root / 'first'}"
        self.second = f"file:{root / 'second'}"

    def mirror(self, *arguments: str, code: int = 0) -> Ran:
        return run("mirror", "-d", self.data, *arguments, code=code)

    def keys(self, url: str) -> list[str]:
        return [info.key for info in open_object_store(url).list("")]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A tier of one store, as yet without a mirror."""
    found = Place(tmp_path)
    with varve.open(found.data, maintain=False) as store:
        store.create_topic("orders", settings={"remote.storage.enable": True})
        for number in range(20):
            store.topic("orders").append(value=f"value {number}")
    run("copy", "-d", found.data, "--store", found.first, "--roll")
    return found


@pytest.fixture
def mirrored(place: Place) -> Place:
    """The same with a mirror that has lost some objects since."""
    with varve.open(place.data, maintain=False) as store:
        store.topic("orders").append(value="one more")
    run("copy", "-d", place.data, "--mirror", place.second, "--roll")
    assert place.keys(place.first) == place.keys(place.second)
    bucket = open_object_store(place.second)
    bucket.delete(place.keys(place.second)[:9])
    return place


def lines(found: Ran) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    *differences, summary = found.rows
    return differences, summary


def test_what_the_second_store_lacks_is_told_and_repaired(mirrored: Place) -> None:
    found = mirrored.mirror(code=1)
    assert "missing" in found.stdout
    assert "nothing was changed; --repair copies what is missing" in found.stdout
    done = mirrored.mirror("--repair", "--yes")
    assert "copied, 0 deleted" in done.stdout
    assert mirrored.keys(mirrored.first) == mirrored.keys(mirrored.second)
    level = mirrored.mirror("--deep")
    assert f"{len(mirrored.keys(mirrored.first))} objects" in level.stdout


def test_a_mirror_is_remembered_by_the_first_copy_and_no_other_is_taken(mirrored: Place) -> None:
    shown = run("status", "-d", mirrored.data).stdout
    assert "mirrored in file://" in " ".join(shown.split())
    (row,) = run("status", "-d", mirrored.data, "--json").rows
    assert row["mirror"].endswith("/second")
    assert row["mirror_trouble"] is None
    for option in ("--mirror", "--store"):
        found = mirrored.mirror(option, "file:/elsewhere", code=1)
        assert "leave the setting out" in found.told


def test_a_tier_without_a_mirror_says_how_to_get_one(place: Place) -> None:
    found = place.mirror(code=1)
    assert "name one with --mirror" in found.told
    assert "mirrored" not in run("status", "-d", place.data).stdout
    place.mirror("--mirror", place.second, "--repair", "--yes")
    assert place.keys(place.first) == place.keys(place.second)


def test_json_has_a_line_per_difference_and_a_summary(mirrored: Place) -> None:
    mirrored.mirror("--repair", "--yes")
    first, second = open_object_store(mirrored.first), open_object_store(mirrored.second)
    gone, changed = mirrored.keys(mirrored.first)[:2]
    second.delete([gone])
    data = bytearray(first.get(changed))
    data[0] ^= 1
    second.put(changed, data)
    second.put("extra", b"123")
    _, shallow = lines(mirrored.mirror("--json", code=1))
    assert (shallow["missing"], shallow["different"], shallow["extra"]) == (1, 0, 1)
    found = mirrored.mirror("--json", "--deep", "--repair", "--yes", code=1)
    differences, summary = lines(found)
    told = {one["key"]: (one["fault"], one["repaired"]) for one in differences}
    assert told == {
        gone: ("missing", True),
        changed: ("different", True),
        "extra": ("extra", False),
    }
    assert (summary["copied"], summary["deleted"], summary["is_in_sync"]) == (2, 0, False)
    assert "may be the last copy" in mirrored.mirror("--repair", "--yes", code=1).stdout
    mirrored.mirror("--delete-extra", code=2)
    mirrored.mirror("--repair", "--yes", "--delete-extra")
    mirrored.mirror("--deep")


def test_an_empty_first_store_makes_nobody_delete_the_last_copy(mirrored: Place) -> None:
    mirrored.mirror("--repair", "--yes")
    first = open_object_store(mirrored.first)
    keys = mirrored.keys(mirrored.first)
    first.delete(keys)
    found = mirrored.mirror(code=1)
    text = found.shown
    assert "/first has 0 objects, 0 B;" in text
    assert f"/second has {len(keys)}," in text
    assert "copy the second back to it" in text
    assert "--delete-extra" not in text
    assert "--delete-extra" not in mirrored.mirror("--repair", "--yes", code=1).stdout
    refused = mirrored.mirror("--repair", "--yes", "--delete-extra", code=1)
    assert "nothing was changed" in refused.stderr
    assert "--delete-last-copies" in refused.stderr
    assert mirrored.keys(mirrored.second) == keys
    _, summary = lines(mirrored.mirror("--json", code=1))
    assert (summary["objects"], summary["second_objects"]) == (0, len(keys))
    assert summary["is_first_poor"]
    mirrored.mirror("--delete-last-copies", code=2)
    mirrored.mirror("--repair", "--yes", "--delete-extra", "--delete-last-copies")
    assert mirrored.keys(mirrored.second) == []


def test_an_interrupted_repair_goes_on_where_it_was(
    mirrored: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(progress: Progress, title: str, done_bytes: int, total_bytes: int) -> None:
        if title == "copy" and done_bytes:
            os.kill(os.getpid(), signal.SIGINT)

    before = len(mirrored.keys(mirrored.second))
    with monkeypatch.context() as patch:
        patch.setattr(Progress, "show", interrupt)
        stopped = mirrored.mirror("--repair", "--yes", code=130)
    assert "what was copied stays, run it again to continue" in stopped.stderr
    assert before < len(mirrored.keys(mirrored.second)) < len(mirrored.keys(mirrored.first))
    mirrored.mirror("--repair", "--yes")


def test_it_runs_beside_an_open_store(mirrored: Place) -> None:
    with varve.open(mirrored.data, maintain=False):
        mirrored.mirror("--repair", "--yes")


def test_a_repair_asks_first(mirrored: Place) -> None:
    before = mirrored.keys(mirrored.second)
    asked = mirrored.mirror("--repair", code=1)
    assert "copy 9 objects to file://" in asked.stderr
    assert "add --yes" in asked.stderr
    assert mirrored.keys(mirrored.second) == before
    mirrored.mirror("--repair", "--yes")
    mirrored.mirror("--repair")


def test_settings_of_the_mirror_begin_with_its_name() -> None:
    given = {"endpoint": "https://here", "mirror.endpoint": "https://there"}
    first, second = split_store_settings(given)
    assert (first, second) == ({"endpoint": "https://here"}, {"endpoint": "https://there"})
    where = TierWhere((), store_settings=given, store_url="s3://a", mirror_url="s3://b")
    assert where.tier_settings() == {
        "varve.tier.url": "s3://a",
        "varve.tier.mirror.url": "s3://b",
        "varve.tier.store.endpoint": "https://here",
        "varve.tier.mirror.store.endpoint": "https://there",
    }


def test_a_first_store_that_is_missing_is_not_compared(place: Place, tmp_path: Path) -> None:
    """It would seem to hold nothing, and all in the mirror to be too much."""
    (tmp_path / "first").rename(tmp_path / "away")
    failed = place.mirror("--mirror", place.second, "--repair", "--yes", code=1)
    assert "first is missing" in failed.told
    assert not (tmp_path / "first").exists()
