"""A swap that varve began and a crash cut short is ended alike by Kafka's loader and by varve's."""

import random
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.conformance.tools.cleaner import opened_with_kafka
from tests.conformance.tools.cleaning_cases import CASES, draw_turns
from tests.conformance.tools.cleaning_pair import (
    PARTITION,
    TOPIC_ID,
    CleaningPair,
    check_directory,
    open_store,
)
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.stored_batches import read_partition
from varve.cleaning.key_index.key_index import open_key_index
from varve.commit_log.names import (
    CLEAN_SHUTDOWN_FILE,
    CLEANED,
    DELETED,
    INDEX,
    KEYS,
    LOG,
    RECOVERY_POINT_FILE,
    SWAP,
    TIME_INDEX,
    TXN_INDEX,
)
from varve.disk import RealFileSystem

pytestmark = pytest.mark.java

KINDS = (LOG, INDEX, TIME_INDEX, TXN_INDEX, KEYS)


def _only_cleaned(partition: Path, old: list[Path], new: list[Path]) -> None:
    _copy(partition, new, CLEANED)


def _half_swapped(partition: Path, old: list[Path], new: list[Path]) -> None:
    _copy(partition, new, CLEANED)
    (partition / f"{new[0].name}{CLEANED}").rename(partition / f"{new[0].name}{SWAP}")


def _all_swapped(partition: Path, old: list[Path], new: list[Path]) -> None:
    _copy(partition, new, SWAP)


def _half_deleted(partition: Path, old: list[Path], new: list[Path]) -> None:
    _copy(partition, new, SWAP)
    for path in old[: len(old) // 2]:
        path.rename(path.with_name(path.name + DELETED))


def _all_deleted(partition: Path, old: list[Path], new: list[Path]) -> None:
    _copy(partition, new, SWAP)
    for path in old:
        path.rename(path.with_name(path.name + DELETED))


def _half_renamed(partition: Path, old: list[Path], new: list[Path]) -> None:
    _all_deleted(partition, old, new)
    for path in new[:2]:
        (partition / f"{path.name}{SWAP}").rename(partition / path.name)


def _copy(partition: Path, new: list[Path], suffix: str) -> None:
    for path in new:
        shutil.copy2(path, partition / f"{path.name}{suffix}")


Wreck = Callable[[Path, list[Path], list[Path]], None]
WRECKS: Mapping[str, tuple[Wreck, bool]] = {
    "new files written": (_only_cleaned, False),
    "new files partly swapped": (_half_swapped, False),
    "new files swapped": (_all_swapped, True),
    "old files partly deleted": (_half_deleted, True),
    "old files deleted": (_all_deleted, True),
    "new files partly renamed": (_half_renamed, True),
}


@pytest.mark.parametrize("name", WRECKS)
def test_both_loaders_end_a_swap_alike(kafka_log: JavaShell, scratch: Path, name: str) -> None:
    pair = CleaningPair(kafka_log, scratch, CASES["transactions"].settings())
    turn = next(draw_turns(CASES["transactions"], random.Random("swap"), 1))
    pair.begin(turn.steps, turn.now_ms)
    shutil.copytree(pair.ours.parent, scratch / "old")
    pair.clean_ours(turn.now_ms)
    wreck, is_committed = WRECKS[name]
    expected = _files_after(pair) if is_committed else read_partition(pair.theirs).files

    loaded = []
    for side in ("by varve", "by kafka"):
        partition = Path(shutil.copytree(scratch / "old", scratch / side)) / str(PARTITION)
        for mark in (CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE):
            (partition.parent / mark).unlink()
        wreck(partition, *_changed_files(partition, pair.ours))
        if side == "by kafka":
            with opened_with_kafka(kafka_log, partition, pair.settings.configs, now_ms=turn.now_ms):
                pass
        with open_store(partition.parent, pair.settings, turn.now_ms) as store:
            segment = next(iter(store.get(PARTITION).view.closed))
            index = open_key_index(RealFileSystem(), segment, topic_id=TOPIC_ID.bytes)
            assert (index is not None) is is_committed
            if index is not None:
                index.verify()
                index.close()
        assert not [path for path in partition.iterdir() if path.suffix in (CLEANED, SWAP)]
        assert check_directory(partition.parent, turn.now_ms) == []
        loaded.append(read_partition(partition))
    assert loaded[0].files == loaded[1].files == expected
    assert loaded[0].aborted == loaded[1].aborted


def _files_after(pair: CleaningPair) -> dict[str, bytes]:
    """The data files once the first group is swapped: its successor, and the old ones behind."""
    old, new = read_partition(pair.theirs).files, read_partition(pair.ours).files
    first, following = sorted(new)[:2]
    return {first: new[first], **{name: old[name] for name in sorted(old) if name >= following}}


def _changed_files(old: Path, new: Path) -> tuple[list[Path], list[Path]]:
    """The files of the first group of segments that a cleaning replaced, and of its successor."""
    bases = sorted(path.stem for path in new.glob(f"*{LOG}"))
    first, following = bases[0], bases[1]
    replaced = sorted({path.stem for path in old.glob(f"*{LOG}") if path.stem < following})
    assert len(replaced) > 1
    gone = [old / f"{base}{kind}" for base in replaced for kind in KINDS]
    made = [new / f"{first}{kind}" for kind in KINDS]
    return [path for path in gone if path.exists()], [path for path in made if path.exists()]
