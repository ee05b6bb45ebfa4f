"""Cleaning a dirty log, against Apache Kafka's own log cleaner over copies of the same segments."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.compaction.cleanings import build_indexes, check_survivors, time_varve
from benchmarks.compaction.keyed_log import (
    KeyedStore,
    LogShape,
    partition_directory,
    shapes_of,
    write_store,
)
from benchmarks.measure import Aim, Contest, MeasureSkipped, Scale, at_least
from benchmarks.sizes import SizeUnit
from benchmarks.workspace import Workspace
from tests.conformance.tools.cleaner import CleanerOptions, clean_with_kafka
from tests.conformance.tools.recovery import LOG_SHELL
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.toolchain import ToolchainMissing, prepare_toolchain
from varve.records import Codec

_WARM_UP_COUNT = 5
_WARM_UP_BYTES = 64 << 20
_REPEAT_COUNT_MAX = 5


class KafkaMeasure:
    """Size: bytes of the log's records before compression, all of them dirty."""

    name = "kafka"
    title = "cleaning a dirty log, against Apache Kafka's own log cleaner"
    size_unit = SizeUnit.BYTES

    def default_sizes(self, *, quick: bool) -> Sequence[int]:
        return (128 << 20, 256 << 20, 512 << 20)

    @contextmanager
    def prepare(self, size: int, workspace: Workspace, scale: Scale) -> Iterator[Sequence[Contest]]:
        if scale.is_quick:
            raise MeasureSkipped("a Java virtual machine takes longer to warm up than --quick has")
        try:
            toolchain = prepare_toolchain()
        except ToolchainMissing as missing:
            raise MeasureSkipped(str(missing)) from missing
        shapes = shapes_of(scale)
        workspace.require((size + _WARM_UP_BYTES) * len(shapes) + 3 * size)
        with (
            workspace.directory("dirty") as parent,
            JavaShell(toolchain.at_full_speed(), LOG_SHELL) as shell,
        ):
            yield [
                contest
                for number, shape in enumerate(shapes)
                for contest in _contests(parent / f"{number}", shape, size, workspace, scale, shell)
            ]


def aim_for(shape: LogShape) -> Aim | None:
    """Stated for uncompressed and zstd batches."""
    return {Codec.NONE: at_least(10), Codec.ZSTD: at_least(3)}.get(shape.codec)


def _contests(
    directory: Path,
    shape: LogShape,
    size: int,
    workspace: Workspace,
    scale: Scale,
    shell: JavaShell,
) -> list[Contest]:
    source = write_store(directory / "measured", shape, size)
    build_indexes(source, scale)
    small = write_store(directory / "small", shape, min(size, _WARM_UP_BYTES))
    mib = size / (1 << 20)
    kafka = KafkaCleaner(workspace, small, scale, shell)

    def ours(*, with_indexes: bool) -> float:
        return mib / time_varve(workspace, source, scale, with_indexes=with_indexes)

    return [
        Contest(
            name,
            "MiB/s",
            partial(ours, with_indexes=with_indexes),
            lambda: mib / kafka.time_clean(source),
            aim_for(shape),
            note,
            str(shape),
            repeat_count_max=_REPEAT_COUNT_MAX,
        )
        for name, with_indexes, note in (
            (
                "kafka",
                False,
                "one thread each, no throttle; the virtual machine has the options of a broker "
                f"and has cleaned {_WARM_UP_COUNT} such logs before; both leave one record of each "
                "key, checked; ours builds its key indexes within the time",
            ),
            ("kafka_indexed", True, "our key indexes built beforehand, as in the background"),
        )
    ]


class KafkaCleaner:
    """Kafka's cleaner in a virtual machine that has cleaned `small` several times before."""

    def __init__(
        self, workspace: Workspace, small: KeyedStore, scale: Scale, shell: JavaShell
    ) -> None:
        self._workspace = workspace
        self._shell = shell
        self._counts_cpu = scale.ticker is time.thread_time
        self._options = CleanerOptions(dedupe_buffer_bytes=scale.buffer_bytes)
        self._to_warm_up = [small] * _WARM_UP_COUNT

    def time_clean(self, source: KeyedStore) -> float:
        """Seconds of one cleaning, opening and closing the log left out."""
        while self._to_warm_up:
            self._clean_copy(self._to_warm_up.pop())
        return self._clean_copy(source)

    def _clean_copy(self, source: KeyedStore) -> float:
        with self._workspace.directory("kafka") as parent:
            # Whole copies: Kafka maps and resizes files that varve never touches.
            directory = Path(shutil.copytree(source.directory, parent / "store"))
            done = clean_with_kafka(
                self._shell,
                partition_directory(directory),
                now_ms=source.now_ms,
                configs={
                    "cleanup.policy": "compact",
                    "segment.bytes": str(source.shape.segment_bytes),
                },
                first_dirty_offset=0,
                options=self._options,
            )
            check_survivors(directory, source)
        return (done.cpu_ns if self._counts_cpu else done.elapsed_ns) / 1e9
