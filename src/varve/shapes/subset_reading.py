"""A subset of a shape's rows as they are now, read from the table of its topic.

Invariant  `position` is a place in the shape's log that lies at or before what the rows show, so
           a client that goes on from there misses nothing; `tx` is the place that they show. No
           rows are given that are older than what clients may have been told before a crash.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from varve.foundation.errors import Closed, Unavailable
from varve.shapes.feed.row import Row
from varve.shapes.feed.table import TableView
from varve.shapes.offset import Offset
from varve.shapes.query.subset import Subset
from varve.shapes.settings import EngineSettings
from varve.shapes.shape import Shape
from varve.shapes.topic_shapes import TopicShapes


@dataclass(frozen=True, slots=True)
class SubsetResult:
    """Messages ready to be sent, and the numbers that go with them."""

    rows: list[bytes]
    position: Offset
    tx: int
    mark: int


def read_subset(
    topic: TopicShapes,
    shape: Shape,
    subset: Subset,
    *,
    mark: int,
    settings: EngineSettings,
    is_left: Callable[[], bool],
) -> SubsetResult:
    """Runs a subset request; raises Unavailable while the topic is not open, or read again.

    One that would give more than the settings allow is refused: InvalidRequest. `is_left` is asked
    at every row, and ends it with Unavailable.
    """
    feed = topic.find_feed()
    if feed is None:
        raise Unavailable(f"topic {topic.topic} is not open yet: try again")
    if not topic.is_read_again:
        raise Unavailable(f"topic {topic.topic} is being read again after a stop: try again")
    position = shape.latest
    try:
        with feed.view() as view:
            rows = subset.run(
                _rows(view, shape, is_left),
                partial(shape.form.subset_row, mark=mark),
                rows_max=settings.subset_rows_max,
                bytes_max=settings.subset_bytes_max,
            )
            tx = max(view.position.tx, 0)
    except Closed as error:
        raise Unavailable(f"topic {topic.topic} is being opened again: {error}") from error
    return SubsetResult(rows, position, tx, mark)


def _rows(view: TableView, shape: Shape, is_left: Callable[[], bool]) -> Iterator[tuple[str, Row]]:
    where = shape.definition.where
    for key, row in view.rows():
        if is_left():
            raise Unavailable("nobody waits for the subset any more")
        if where is None or where.matches(row):
            yield key, row
