"""What a benchmark is made of: measures, their contests, and what came out.

A `Measure` prepares its data at one size and offers one or more `Contest`s. A contest has two
callables, ours and the baseline; each does its untimed preparation itself and gives one figure
in the contest's unit, so that the harness can alternate them.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from benchmarks.sizes import Size, SizeUnit
from benchmarks.workspace import Workspace
from varve.records import Codec

Ticker = Callable[[], float]

FULL_VOLUME_BYTES = 256 << 20
QUICK_VOLUME_BYTES = 64 << 20
FULL_SEGMENT_BYTES = 64 << 20
QUICK_SEGMENT_BYTES = 4 << 20
FULL_BUFFER_BYTES = 128 << 20
QUICK_BUFFER_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Aim:
    """A bound on the ratio of ours to the baseline."""

    limit: float
    at_least: bool

    def is_met(self, ratio: float) -> bool:
        return ratio >= self.limit if self.at_least else ratio <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}"


def at_least(limit: float) -> Aim:
    return Aim(limit, at_least=True)


def at_most(limit: float) -> Aim:
    return Aim(limit, at_least=False)


@dataclass(frozen=True, slots=True)
class Contest:
    """Ours beside its baseline; `baseline` is None for a figure that stands alone.

    `within` names a second size that the figure depends on, such as the batch around a record;
    `is_wall_time` says that its seconds are those of the wall, whatever the clock.
    """

    measure: str
    unit: str
    ours: Callable[[], float]
    baseline: Callable[[], float] | None
    aim: Aim | None = None
    note: str = ""
    within: str = ""
    repeat_count_max: int | None = None
    is_wall_time: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work a figure takes; what is compared stays the same."""

    volume_bytes: int
    batch_bytes: tuple[int, ...]
    ticker: Ticker = time.perf_counter
    """Seconds by the wall, or by the processor where others use the machine too."""
    record_bytes: tuple[int, ...] = (100, 1 << 10)
    """Bytes of a record's value, where the size is that of a log."""
    codecs: tuple[Codec, ...] = (Codec.NONE, Codec.ZSTD)
    unique_share: float = 0.2
    """Distinct keys among the records of a log."""
    segment_bytes: int = FULL_SEGMENT_BYTES
    buffer_bytes: int = FULL_BUFFER_BYTES
    """Memory a cleaner may use to tell keys apart."""
    is_quick: bool = False


class MeasureSkipped(Exception):
    """Raised while preparing a measure that cannot be taken here; the others go on."""


class Measure(Protocol):
    """One question asked at several sizes."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def size_unit(self) -> SizeUnit: ...

    def default_sizes(self, *, quick: bool) -> Sequence[int]: ...

    def prepare(
        self, size: int, workspace: Workspace, scale: Scale
    ) -> AbstractContextManager[Sequence[Contest]]:
        """Makes the data of one size; leaving the context removes it."""
        ...


@dataclass(frozen=True, slots=True)
class Suite:
    """The measures behind one NAME of the command line.

    `batch_bytes` are the sizes of batches where none are asked for; `quick_seconds` is what a quick
    run may take, where that is more than for others.
    """

    name: str
    title: str
    measures: tuple[Measure, ...]
    batch_bytes: tuple[int, ...] = (128 << 10, 1 << 20)
    quick_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of one contest at one size, in the order they were taken."""

    contest: Contest
    size: Size
    ours: tuple[float, ...]
    baseline: tuple[float, ...]

    @property
    def size_label(self) -> str:
        within = self.contest.within
        return f"{self.size} in {within}" if within else str(self.size)
