"""A process that commits to a manifest in competition with another.

    python -m tests.support.manifest_racer URL SETTINGS-JSON WRITER WRITERS ROUNDS

Writer w of W copies the segments w, W + w, 2 W + w and so on, and deletes each again some rounds
later: four commits a segment, of which the manifest stays small and its pages many. It prints
"version commit-id" for every commit that returned, and takes a pause after each, longer when it was
first several times in a row: who knows the newest version is faster than who has to load it. Rounds
take turns with the store as it is, with one that loses and doubles requests and answers, and with
that one below a RetryingObjectStore.
"""

import json
import random
import sys
import threading

from tests.support.remote_builder import HOME, make_segment
from varve.object_store import ObjectStore, RetryingObjectStore, RetryPolicy, open_object_store
from varve.testing import FaultKind, FaultyObjectStore, ObjectFaultPlan
from varve.tiering.manifest.commit import ManifestEdit, RetryLimits
from varve.tiering.manifest.manifest import Manifest
from varve.tiering.manifest.pages import ManifestLayout
from varve.tiering.manifest.segment import SegmentState
from varve.tiering.manifest.store import ObjectManifestStore

KEPT_ROUNDS = 6
LAYOUT = ManifestLayout(inline_max=6, page_segments=3, ref_max=4, page_refs=2)
RETRY = RetryLimits(attempts=1_000, first_wait_ms=0.1, longest_wait_ms=3)
PAUSE_MS_MAX = 4.0
DOUBLINGS_MAX = 4
RATES = {
    FaultKind.ERROR_BEFORE: 0.02,
    FaultKind.ERROR_AFTER: 0.06,
    FaultKind.REPEATED: 0.06,
    FaultKind.THROTTLED: 0.01,
}


def wait(wait_ms: float) -> None:
    threading.Event().wait(wait_ms / 1000)


def open_manifests(objects: ObjectStore, seed: int) -> ObjectManifestStore:
    return ObjectManifestStore(
        objects,
        HOME,
        random=random.Random(seed),
        wait=wait,
        layout=LAYOUT,
        retry=RETRY,
        grace_ms=0,
    )


def commits_of(store: ObjectManifestStore, number: int) -> dict[str, ManifestEdit]:
    """The four changes that a segment goes through."""
    id, start = f"segment-{number}", 100 * number

    def near(manifest: Manifest) -> Manifest:
        return store.unfold(manifest, start_offset=start, end_offset=start + 1)

    return {
        "announce": lambda m: m.announce(make_segment(number)),
        "finish": lambda m: near(m).finish(make_segment(number, SegmentState.COPY_FINISHED)),
        "start delete": lambda m: near(m).start_delete([id], at_ms=0),
        "forget": lambda m: near(m).forget([id]),
    }


def _open_stores(objects: ObjectStore, seed: int) -> list[ObjectManifestStore]:
    faulty = FaultyObjectStore(objects, ObjectFaultPlan(seed=seed, rates=RATES))
    policy = RetryPolicy(first_wait_ms=1, wait_ms_max=5)
    retrying = RetryingObjectStore(faulty, policy=policy, source=random.Random(seed))
    kinds = (objects, faulty, retrying)
    return [open_manifests(one, 10 * seed + place) for place, one in enumerate(kinds)]


def main() -> None:
    url, settings, *rest = sys.argv[1:]
    writer, writers, rounds = map(int, rest)
    stores = _open_stores(open_object_store(url, json.loads(settings)), writer)
    stores[0].load()
    pauses = random.Random(writer)
    last_version = in_a_row = 0
    print("ready", flush=True)
    sys.stdin.readline()

    def commit(store: ObjectManifestStore, number: int, *names: str) -> None:
        nonlocal last_version, in_a_row
        changes = commits_of(store, number)
        for name in names:
            done = store.commit(changes[name], leader_epoch=0, writer=f"w{writer}", now_ms=0)
            print(done.version, done.commit_id, flush=True)
            in_a_row = in_a_row + 1 if done.version == last_version + 1 else 0
            last_version = done.version
            wait(pauses.uniform(0, PAUSE_MS_MAX * 2 ** min(in_a_row, DOUBLINGS_MAX)))

    for round in range(rounds):
        store = stores[round % len(stores)]
        commit(store, round * writers + writer, "announce", "finish")
        if round >= KEPT_ROUNDS:
            commit(store, (round - KEPT_ROUNDS) * writers + writer, "start delete", "forget")


if __name__ == "__main__":
    main()
