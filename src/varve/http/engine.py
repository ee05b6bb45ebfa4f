"""What the door asks of the engine behind it.

Invariant  `find`, `find_by_definition`, `newest_tx`, `is_caught_up`, `is_read_again`, `health`,
           `topic_health`, `end_compactions` and the properties of a shape neither block nor touch
           files; everything else runs in a pool.
Threads    any thread may ask; a listener is called from the engine's threads.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

from varve.foundation.errors import StoreError
from varve.foundation.metrics import Collector
from varve.shapes.compaction.report import CompactionReport
from varve.shapes.definition import Definition
from varve.shapes.health import EngineHealth, TopicHealth
from varve.shapes.offset import Offset
from varve.shapes.query.subset import Subset
from varve.shapes.shape import DropReason
from varve.shapes.subset_reading import SubsetResult


class Shape(Protocol):
    """One shape as readers see it."""

    @property
    def handle(self) -> str: ...
    @property
    def definition(self) -> Definition: ...
    @property
    def created_ms(self) -> int: ...
    @property
    def is_dropped(self) -> bool: ...
    @property
    def is_snapshot_started(self) -> bool: ...
    @property
    def is_snapshot_complete(self) -> bool: ...
    @property
    def is_open(self) -> bool:
        """Whether places are known without a file."""

    @property
    def failure(self) -> StoreError | None:
        """Why there is no snapshot."""

    @property
    def latest(self) -> Offset:
        """The last place that may be shown, `0_inf` before the log has any."""

    @property
    def compacted_to(self) -> Offset:
        """Before this place what is read has rows of up to this place."""

    def open(self) -> object:
        """Makes places known; raises NotFound if the shape was dropped."""

    def chunk_end(self, offset: Offset) -> Offset | None: ...
    def is_in_memory(self, start: Offset) -> bool:
        """Whether all behind this place is read without files."""

    def read(self, start: Offset, end: Offset) -> Iterator[bytes]:
        """The messages in (start, end], joined by commas, in pieces that are never empty."""

    def kept(self) -> AbstractContextManager[None]:
        """To be entered while a request asks it for something."""

    def followed(self) -> AbstractContextManager[None]:
        """To be entered while a request waits for news: other shapes make room first."""


class Engine(Protocol):
    """All shapes of a process."""

    @property
    def metrics(self) -> Collector: ...
    def find(self, handle: str) -> Shape | None: ...
    def find_by_definition(self, definition: Definition) -> Shape | None: ...
    def find_or_create(self, definition: Definition) -> Shape: ...
    def drop(self, shape: Any, reason: DropReason) -> None: ...
    def compact(self, shape: Any) -> CompactionReport: ...
    def end_compactions(self) -> None:
        """Lets those under way end soon, with Closed, and none begin. Does not wait."""

    def subset(self, shape: Any, subset: Subset, is_left: Callable[[], bool]) -> SubsetResult:
        """The rows asked for; ends soon, by an error, once nobody waits for them."""

    def shapes(self) -> Collection[Shape]: ...
    def newest_tx(self, topic: str) -> int:
        """The last transaction of a topic that all its shapes have seen."""

    def is_caught_up(self, topic: str) -> bool:
        """Whether all is replayed that was there when the engine began."""

    def is_read_again(self, topic: str) -> bool:
        """Whether rows are not behind what clients were told before a restart."""

    def health(self) -> EngineHealth: ...
    def topic_health(self, topic: str) -> TopicHealth | None:
        """How one topic fares, however many there are; None for one without shapes."""

    def subscribe(self, listener: Callable[[Collection[str]], None]) -> object:
        """Calls with the handles of shapes that have more, that began, failed, or are gone."""
