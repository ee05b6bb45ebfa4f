"""Apache Kafka's own cleaner and its own retention, run once over a partition directory.

Layout     the partition lies in a log directory, whose checkpoints and clean-shutdown mark say how
           it is opened; the end of a cleaning goes into `cleaner-offset-checkpoint`.
Crash      the partition is left closed in good order; the mark of the directory stays as it is.
"""

import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.conformance.tools.recovery import LOG_STARTS, RECOVERY_POINTS, read_checkpoint
from tests.conformance.tools.shell import JavaShell, ShellFailed
from varve.commit_log import TopicPartition
from varve.commit_log.names import CLEAN_SHUTDOWN_FILE, CLEANER_OFFSET_FILE
from varve.commit_log.offset_checkpoints import encode_offsets

DEDUPE_BUFFER_BYTES: Final = 128 << 20
IO_BUFFER_BYTES: Final = 512 << 10
LOAD_FACTOR: Final = 0.9
NEVER_MS: Final = 2**31 - 1

NOTHING: Final = "nothing lies between"

Segments = tuple[tuple[int, int], ...]


class NothingToClean(Exception):
    """No closed segment lies between the first dirty and the first uncleanable offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanerOptions:
    """How the cleaner is set up; the defaults are a broker's with one cleaner thread."""

    dedupe_buffer_bytes: int = DEDUPE_BUFFER_BYTES
    io_buffer_bytes: int = IO_BUFFER_BYTES
    load_factor: float = LOAD_FACTOR
    producer_expiration_ms: int = NEVER_MS
    warmups: int = 0  # cleanings of copies beforehand, so that the code is compiled when it counts


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaCleaning:
    """One cleaning; both times are of the cleaning alone, without opening and closing the log.

    `cpu_ns` is the cleaning thread's, without garbage collection. Segments are pairs of base
    offset and size. Messages read for the map count a control batch as one.
    """

    first_dirty_offset: int
    first_uncleanable_offset: int
    end_offset: int
    elapsed_ns: int
    cpu_ns: int
    bytes_read: int
    bytes_written: int
    map_messages_read: int
    messages_read: int
    messages_written: int
    invalid_messages_read: int
    buffer_utilisation: float
    size_before: int
    size_after: int
    segments_before: Segments
    segments_after: Segments
    warmup_ns: tuple[int, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSelection:
    """How dirty a log is; `is_corrected` says that its checkpoint lay outside the log."""

    first_dirty_offset: int
    is_corrected: bool
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    delay_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaExpiry:
    """One look by retention: where the log begins now, and the segments that are left."""

    deleted: int
    log_start_offset: int
    log_end_offset: int
    segments_before: Segments
    segments_after: Segments


def clean_with_kafka(
    logs: JavaShell,
    partition: Path,
    *,
    now_ms: int,
    configs: Mapping[str, str],
    first_dirty_offset: int | None = None,
    first_uncleanable_offset: int | None = None,
    options: CleanerOptions | None = None,
) -> KafkaCleaning:
    """Cleans the partition once, whatever its ratio, and checkpoints where the run ended.

    Without a first dirty offset the directory's checkpoint says it; without a first uncleanable
    one Kafka's rule does. `logs` is a LogShell. Raises NothingToClean where no cleaner thread
    would have chosen the log.
    """
    options = options or CleanerOptions()
    if first_dirty_offset is None:
        first_dirty_offset = _checkpointed(partition, CLEANER_OFFSET_FILE)

    def run(directory: Path) -> dict[str, Any]:
        expiration_ms = options.producer_expiration_ms
        with opened_with_kafka(
            logs, directory, configs, now_ms=now_ms, producer_expiration_ms=expiration_ms
        ):
            answer = logs.try_call(
                "clean",
                directory=str(directory),
                now_ms=now_ms,
                first_dirty_offset=first_dirty_offset,
                first_uncleanable_offset=first_uncleanable_offset,
                dedupe_buffer_bytes=options.dedupe_buffer_bytes,
                io_buffer_bytes=options.io_buffer_bytes,
                load_factor=options.load_factor,
            )
        return _checked(answer)

    warmup_ns = []
    for _ in range(options.warmups):
        with tempfile.TemporaryDirectory(dir=partition.parent.parent) as scratch:
            copy = Path(shutil.copytree(partition.parent, Path(scratch) / "copy"))
            warmup_ns.append(run(copy / partition.name)["elapsed_ns"])
    answer = run(partition)
    _checkpoint(partition, CLEANER_OFFSET_FILE, answer["end_offset"])
    return KafkaCleaning(**_with_segments(answer), warmup_ns=tuple(warmup_ns))


def select_with_kafka(
    logs: JavaShell,
    partition: Path,
    *,
    looks: Sequence[tuple[int | None, int]],
    configs: Mapping[str, str],
) -> list[KafkaSelection]:
    """How dirty Kafka's cleaner manager finds the partition, for pairs of checkpoint and time."""
    found = []
    with opened_with_kafka(logs, partition, configs, now_ms=looks[0][1]):
        for first_dirty_offset, now_ms in looks:
            answer = logs.call(
                "select",
                directory=str(partition),
                first_dirty_offset=first_dirty_offset,
                now_ms=now_ms,
            )
            # Nothing to clean of nothing is no number; such a log is passed over.
            ratio = 0.0 if answer["ratio"] == "NaN" else answer["ratio"]
            found.append(KafkaSelection(**{**answer, "ratio": ratio}))
    return found


def expire_with_kafka(
    logs: JavaShell, partition: Path, *, now_ms: int, configs: Mapping[str, str]
) -> KafkaExpiry:
    """Deletes the segments that retention lets go, all records counting as replicated."""
    with opened_with_kafka(logs, partition, configs, now_ms=now_ms):
        answer = logs.call("expire", directory=str(partition), now_ms=now_ms)
    return KafkaExpiry(**_with_segments(answer))


@contextmanager
def opened_with_kafka(
    logs: JavaShell,
    partition: Path,
    configs: Mapping[str, str],
    *,
    now_ms: int,
    producer_expiration_ms: int = NEVER_MS,
) -> Iterator[None]:
    """The partition open in the shell as the files around it say, and closed again."""
    logs.call(
        "open",
        directory=str(partition),
        clean=(partition.parent / CLEAN_SHUTDOWN_FILE).exists(),
        recovery_point=_checkpointed(partition, RECOVERY_POINTS) or 0,
        log_start_offset=_checkpointed(partition, LOG_STARTS) or 0,
        configs=dict(configs),
        now_ms=now_ms,
        producer_expiration_ms=producer_expiration_ms,
    )
    try:
        yield
    finally:
        logs.call("close", directory=str(partition))


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    if NOTHING in answer.get("message", ""):
        raise NothingToClean(answer["message"])
    if "error" in answer:
        raise ShellFailed(f"clean failed: {answer['error']}: {answer['message']}", answer["error"])
    return answer


def _with_segments(answer: dict[str, Any]) -> dict[str, Any]:
    for name in ("segments_before", "segments_after"):
        answer[name] = tuple((base_offset, size) for base_offset, size in answer[name])
    return answer


def _checkpointed(partition: Path, file: str) -> int | None:
    path = partition.parent / file
    return read_checkpoint(path).get(partition.name) if path.exists() else None


def _checkpoint(partition: Path, file: str, offset: int) -> None:
    path = partition.parent / file
    offsets = {**(read_checkpoint(path) if path.exists() else {}), partition.name: offset}
    path.write_bytes(encode_offsets({_parse(name): value for name, value in offsets.items()}))


def _parse(name: str) -> TopicPartition:
    topic, _, number = name.rpartition("-")
    return TopicPartition(topic, int(number))
