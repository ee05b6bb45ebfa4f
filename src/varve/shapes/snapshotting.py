"""Snapshots of new shapes: one scan of a topic's table serves all that wait for it.

Invariant  a snapshot holds the rows of its shape at the place where the shape joined the topic, and
           ends with a message that names it. It is durable before the registry calls it complete.
           Nobody waits for ever: a shape is served, or fails with a reason, or waits on because the
           topic was lost before it joined it, which is opened again. What fails of one shape fails
           that one alone. A scan ends with its topic, and its shapes go with that.
Crash      a shape whose snapshot was not complete is dropped at the next start.
Threads    one scan per topic at a time; different topics may be scanned side by side.
"""

import logging
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from typing import Final

from varve.foundation.errors import Closed, StoreError
from varve.foundation.metrics import MetricTable
from varve.shapes.definition import LogMode
from varve.shapes.feed.row import Row
from varve.shapes.feed.table import TableView
from varve.shapes.messages import MessageForm, snapshot_end
from varve.shapes.metrics import SNAPSHOT_ROWS, SNAPSHOTS
from varve.shapes.query.filter_index import FilterIndex
from varve.shapes.registry import Registry
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.snapshot_writer import SnapshotWriter
from varve.shapes.storage.storage import ShapeStorage
from varve.shapes.topic_shapes import TopicShapes

logger = logging.getLogger(__name__)

SCAN_SHAPES_MAX: Final = 512
"""Shapes served by one scan: each has a buffer, and a file once that is full."""
_SHOW_ROWS: Final = 4096
"""After this many rows of the table, what a snapshot has so far is shown to readers."""


class Snapshotter:
    """Gives snapshots to the shapes of a topic that wait for one."""

    def __init__(
        self,
        registry: Registry,
        *,
        create_storage: Callable[[str], ShapeStorage],
        drop: Callable[[Collection[Shape], DropReason], None],
        notify: Callable[[Collection[str]], None],
        pool: Executor,
        metrics: MetricTable,
    ) -> None:
        self._registry = registry
        self._create_storage = create_storage
        self._drop = drop
        self._notify = notify
        self._pool = pool
        self._metrics = metrics

    def run(self, topic: TopicShapes) -> int:
        """Serves all that wait; gives how many shapes have got a snapshot."""
        served = 0
        if topic.waiting.begin():
            try:
                while waiting := topic.waiting.take(SCAN_SHAPES_MAX):
                    served += self._serve(topic, waiting)
            except BaseException:
                topic.waiting.end()
                raise
        return served

    def _serve(self, topic: TopicShapes, waiting: list[Shape]) -> int:
        try:
            return self._try(topic, waiting)
        except Exception as error:
            if topic.is_ended:
                # They are dropped with the topic, or at the next start.
                return 0
            # The top of a task: whatever failed, nobody is to wait for it for ever.
            self._fail([shape for shape in waiting if not shape.is_snapshot_complete], error)
            return 0

    def _try(self, topic: TopicShapes, waiting: list[Shape]) -> int:
        shapes = [shape for shape in waiting if self._prepare(shape)]
        if not shapes:
            return 0
        try:
            view = topic.join(shapes)
        except Closed:
            topic.waiting.put_back(shapes)
            return 0
        scan = self._scan(topic, view, shapes)
        self._metrics.add(SNAPSHOT_ROWS, scan.rows)
        done = [shape for shape in self._pool.map(self._finish(scan), scan.writers) if shape]
        if done:
            self._registry.complete({shape.handle: shape.start for shape in done})
        for shape in done:
            shape.snapshot_complete()
        self._metrics.add(SNAPSHOTS, len(done))
        self._notify([shape.handle for shape in done])
        return len(done)

    def _prepare(self, shape: Shape) -> bool:
        try:
            if not shape.is_open:
                shape.adopt(self._create_storage(shape.handle))
        except (StoreError, OSError) as error:
            self._fail([shape], error)
        return not shape.is_dropped

    def _scan(self, topic: TopicShapes, view: TableView, shapes: list[Shape]) -> "_Scan":
        try:
            scan = _Scan(topic, shapes, view, self._fail, self._notify)
            try:
                scan.read()
            except BaseException:
                scan.abandon()
                raise
            return scan
        finally:
            view.close()

    def _finish(self, scan: "_Scan") -> Callable[[Shape], Shape | None]:
        def finish(shape: Shape) -> Shape | None:
            if shape.is_dropped:
                scan.writers[shape].abandon()
                return None
            try:
                scan.writers[shape].finish(scan.end)
            except Exception as error:
                # The top of a task, as above.
                scan.writers[shape].abandon()
                self._fail([shape], error)
                return None
            return shape

        return finish

    def _fail(self, shapes: Collection[Shape], error: Exception) -> None:
        """Drops shapes, but for those that were dropped for another reason meanwhile."""
        failed = [shape for shape in shapes if not shape.is_dropped]
        if not failed:
            return
        logger.warning(
            "snapshots failed",
            exc_info=error,
            extra={
                "topic": failed[0].definition.topic,
                "shapes": len(failed),
                "handle": failed[0].handle,
            },
        )
        for shape in failed:
            shape.snapshot_failed(error)
        self._drop(failed, DropReason.SNAPSHOT_FAILED)


class _Scan:
    """The rows of a view on their way into the snapshots of some shapes."""

    def __init__(
        self,
        topic: TopicShapes,
        shapes: list[Shape],
        view: TableView,
        fail: Callable[[Collection[Shape], Exception], None],
        notify: Callable[[Collection[str]], None],
    ) -> None:
        self._topic = topic
        self._view = view
        self._fail = fail
        self._notify = notify
        self._index: FilterIndex[Shape] = FilterIndex()
        self.writers: dict[Shape, SnapshotWriter] = {}
        self._started: set[Shape] = set()
        self.end = snapshot_end(view.position)
        self.rows = 0
        for shape in shapes:
            try:
                self.writers[shape] = SnapshotWriter(shape.open().snapshot)
            except (StoreError, OSError) as error:
                self._fail([shape], error)
        self._indexed = {one for one in self.writers if one.definition.log is LogMode.FULL}
        for shape in self._indexed:
            self._index.add(shape, shape.definition.where)

    def read(self) -> None:
        """All rows to all who want them; a shape that is gone meanwhile is left out.

        Raises Closed when the topic ends.
        """
        if not self._indexed:
            return
        for scanned, (key, row) in enumerate(self._view.rows(), start=1):
            found = self._index.matches(row)
            if found:
                self._give(found, key, row)
            if scanned % _SHOW_ROWS == 0:
                if self._topic.is_ended:
                    raise Closed(f"topic {self._topic.topic} ended while it was scanned")
                self._show()
                if not self._indexed:
                    return

    def abandon(self) -> None:
        """Nobody writes on: who reads meanwhile is told."""
        for writer in self.writers.values():
            writer.abandon()

    def _give(self, shapes: Collection[Shape], key: str, row: Row) -> None:
        texts: dict[MessageForm, bytes] = {}
        for shape in list(shapes):
            form = shape.form
            if form not in texts:
                texts[form] = form.snapshot_row(key, row)
            try:
                self.writers[shape].add(texts[form])
                self.rows += 1
            except (StoreError, OSError) as error:
                self._refuse(shape, error)

    def _show(self) -> None:
        """Lets readers begin, and forgets shapes that were dropped."""
        for shape in [one for one in self._indexed if one.is_dropped]:
            self._leave(shape)
        fresh = []
        for shape in self._indexed - self._started:
            try:
                self.writers[shape].flush()
                is_started = shape.open().snapshot.is_started
            except (StoreError, OSError) as error:
                self._refuse(shape, error)
                continue
            if is_started:
                shape.snapshot_started()
                fresh.append(shape)
        self._started.update(fresh)
        if fresh:
            self._notify([shape.handle for shape in fresh])

    def _refuse(self, shape: Shape, error: Exception) -> None:
        self._fail([shape], error)
        self._leave(shape)

    def _leave(self, shape: Shape) -> None:
        self._index.remove(shape)
        self._indexed.discard(shape)
        self.writers.pop(shape).abandon()
