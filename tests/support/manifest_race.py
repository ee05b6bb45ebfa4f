"""Runs racers on one manifest, and reads in the store what became of their commits."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from tests.support.manifest_racer import KEPT_ROUNDS, open_manifests
from tests.support.racing import race, racing
from tests.support.remote_builder import HOME
from varve.foundation.settings import GivenValue
from varve.object_store import open_object_store
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.segment import SegmentState
from varve.tiering.manifest.store import ObjectManifestStore
from varve.tiering.manifest.versions import ManifestVersions

WRITERS = 2
RACER = "tests.support.manifest_racer"
SAMPLES = 40
"""So many versions, evenly spread, are compared with the model segment by segment."""

Settings = dict[str, GivenValue]
State = dict[str, SegmentState]


class Acknowledged(NamedTuple):
    """A commit that returned to its racer."""

    version: int
    commit_id: str


def race_to_commit(
    url: str, settings: Settings, *, rounds: int, timeout_seconds: float = 120
) -> int:
    """Both racers to their end, and all that they did checked; the number of versions."""
    printed = race(RACER, _rows(url, settings, rounds), timeout_seconds=timeout_seconds)
    told = [_parse(text) for text in printed]
    expected = 2 * rounds + 2 * max(0, rounds - KEPT_ROUNDS)
    assert [len(one) for one in told] == [expected] * WRITERS, "a commit is missing"
    count = check_history(url, settings, told, unknown_max=0)
    assert count == WRITERS * expected
    assert _turns(told) > count // 20, "the racers did not meet"
    return count


def race_with_a_kill(
    url: str, settings: Settings, *, rounds: int, killed_after: int, timeout_seconds: float = 120
) -> int:
    """The first racer is killed after so many commits; the other goes on to its end."""
    with racing(RACER, _rows(url, settings, rounds)) as (first, second):
        assert first.stdout is not None
        head = [first.stdout.readline() for _ in range(killed_after)]
        assert all(head), "the racer ended before it was killed"
        first.kill()
        tail, _ = first.communicate(timeout=timeout_seconds)
        text, _ = second.communicate(timeout=timeout_seconds)
        assert second.returncode == 0
    told = [_parse("".join(head) + tail), _parse(text)]
    return check_history(url, settings, told, unknown_max=1)


def check_history(
    url: str, settings: Settings, told: Sequence[Sequence[Acknowledged]], *, unknown_max: int
) -> int:
    """Each commit is in the chain once, in its writer's order, upon the one before it.

    The last `unknown_max` commits of a writer may be there without its knowing.
    """
    objects = open_object_store(url, settings)
    versions = ManifestVersions(objects, HOME)
    numbers = versions.list_after(0)
    assert numbers == list(range(1, len(numbers) + 1)), "the chain has a hole"
    store = open_manifests(objects, 98)
    state: State = {}
    done: list[list[Acknowledged]] = [[] for _ in told]
    previous = Manifest(path=HOME)
    for number in numbers:
        manifest = versions.read(number)
        assert manifest.previous_commit_id == previous.commit_id
        writer = int(manifest.writer.removeprefix("w"))
        _apply(state, writer=writer, place=len(done[writer]))
        done[writer].append(Acknowledged(number, manifest.commit_id))
        if number % max(1, len(numbers) // SAMPLES) == 0 or number == numbers[-1]:
            assert _read_state(store, manifest) == state, f"version {number}"
        previous = manifest
    for known, found in zip(told, done, strict=True):
        assert found[: len(known)] == known, "an acknowledged commit is not where it was said"
        assert len(found) - len(known) <= unknown_max, "a commit is there that nobody knows of"
    return len(numbers)


def _turns(told: Sequence[Sequence[Acknowledged]]) -> int:
    """How often the chain goes on with a commit of another writer."""
    writers = [
        writer
        for _, writer in sorted((one.version, w) for w, known in enumerate(told) for one in known)
    ]
    return sum(one != other for one, other in pairwise(writers))


def _apply(state: State, *, writer: int, place: int) -> None:
    """What a writer's commit of this place in its row does."""
    if place < 2 * KEPT_ROUNDS:
        round, step = divmod(place, 2)
    else:
        round, step = divmod(place - 2 * KEPT_ROUNDS, 4)
        round += KEPT_ROUNDS if step < 2 else 0
    id = f"segment-{round * WRITERS + writer}"
    if step == 3:
        del state[id]
        return
    assert (id in state) == (step > 0)
    state[id] = (
        SegmentState.COPY_STARTED,
        SegmentState.COPY_FINISHED,
        SegmentState.DELETE_STARTED,
    )[step]


def _read_state(store: ObjectManifestStore, manifest: Manifest) -> State:
    return {segment.id: segment.state for segment in store.segments(manifest)}


def _rows(url: str, settings: Settings, rounds: int) -> list[list[str]]:
    return [
        [url, json.dumps(settings), str(writer), str(WRITERS), str(rounds)]
        for writer in range(WRITERS)
    ]


def _parse(text: str) -> list[Acknowledged]:
    """Whole lines only: a killed process may leave half a one."""
    lines = text[: text.rfind("\n") + 1].splitlines()
    parts = (line.split() for line in lines)
    return [Acknowledged(int(version), commit_id) for version, commit_id in parts]
