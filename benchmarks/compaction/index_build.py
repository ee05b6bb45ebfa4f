"""Building key indexes, against reading the data files with the CRC32C of their bytes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from benchmarks.baselines import fastest_checksum, read_with_checksum
from benchmarks.compaction.cleanings import new_cleaner
from benchmarks.compaction.keyed_log import (
    KeyedStore,
    copy_store,
    few_shapes_of,
    open_store,
    partition_directory,
    write_store,
)
from benchmarks.measure import Contest, Scale
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from varve.commit_log.names import LOG

_CHUNK_BYTES = 1 << 20


class IndexBuildMeasure:
    """Size: bytes of the log's records before compression."""

    name = "index_build"
    title = "key indexes of a log, against reading it with its CRC32C"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (8 << 20, 16 << 20) if quick else (128 << 20, 256 << 20, 512 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        shapes = few_shapes_of(scale)
        workspace.require(size * (len(shapes) + 1))
        checksum = fastest_checksum(bytes(_CHUNK_BYTES))
        with workspace.directory("index") as parent:
            contests = []
            for number, shape in enumerate(shapes):
                source = write_store(parent / str(number), shape, size)
                data = sorted(partition_directory(source.directory).glob(f"*{LOG}"))
                read = partial(
                    read_with_checksum, [str(path) for path in data], _CHUNK_BYTES, checksum
                )
                contests.append(
                    Contest(
                        "index_build",
                        "records/s",
                        partial(_build_rate, workspace, source, scale),
                        partial(_read_rate, source, read, scale),
                        None,
                        "checksums verified, keys hashed, sorted, written and synced",
                        str(shape),
                    )
                )
            yield contests


def _build_rate(workspace: Workspace, source: KeyedStore, scale: Scale) -> float:
    with workspace.directory("build") as parent:
        directory = parent / "store"
        copy_store(source.directory, directory, with_indexes=False)
        store = open_store(directory, source.shape).open()
        try:
            cleaner = new_cleaner(store, scale)
            start = scale.ticker()
            built = cleaner.build_indexes(source.now_ms)
            elapsed = scale.ticker() - start
        finally:
            store.abandon()
    if not built:
        raise AssertionError("no key index was built")
    return source.record_count / elapsed


def _read_rate(source: KeyedStore, read: "partial[float]", scale: Scale) -> float:
    return source.record_count / read(scale.ticker)
