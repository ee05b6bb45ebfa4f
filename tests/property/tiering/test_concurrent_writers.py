"""Writers that commit at the same time lose nothing, on every store that can be had here."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.remote_builder import copy, open_manifest
from varve.object_store import DirectoryObjectStore, MemoryObjectStore, ObjectStore
from varve.tiering.manifest.commit import RetryLimits

WRITERS = 4


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_no_update_is_lost_between_writers(kind: str, tmp_path: Path, rounds_factor: int) -> None:
    objects: ObjectStore = (
        MemoryObjectStore() if kind == "memory" else DirectoryObjectStore(str(tmp_path))
    )
    count = 15 * rounds_factor

    def work(writer: int) -> None:
        store = open_manifest(objects, writer, retry=RetryLimits(attempts=1_000))
        for number in range(count):
            copy(store, number * WRITERS + writer)

    with ThreadPoolExecutor(WRITERS) as pool:
        list(pool.map(work, range(WRITERS)))
    reader = open_manifest(objects, 99)
    manifest = reader.load()
    assert manifest.version == 2 * count * WRITERS
    assert manifest.readable_count == count * WRITERS
    bases = [segment.base_offset for segment in reader.segments(manifest)]
    assert bases == [100 * number for number in range(count * WRITERS)]
    assert reader.find_orphan_pages() == []
