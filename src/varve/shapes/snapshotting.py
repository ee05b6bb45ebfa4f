"""Writes the snapshots of new shapes: one scan of a topic's table serves all waiting shapes.

Invariant  a snapshot holds the rows of its shape at the position where the shape joined the topic,
           and ends with a message that names the position. It is durable before the registry marks
           it as complete. A shape gets its snapshot, or fails with a reason, or waits for a feed
           that was lost before it joined and is opened again. A failure affects only its own
           shape. A scan ends with its topic, which drops its shapes.
Crash      a shape whose snapshot was not complete is dropped at the next start.
Threads    one scan per topic at a time; different topics may be scanned side by side.
"""

import logging
from collections import Counter
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import Closed, StoreError, Unavailable
from varve.shapes.definition import LogMode
from varve.shapes.feed.row import Row
from varve.shapes.feed.table import TableView
from varve.shapes.filter.filter_index import FilterIndex
from varve.shapes.messages import MessageEncoder, snapshot_end
from varve.shapes.metrics import SNAPSHOT_ROWS, SNAPSHOTS
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.snapshot import SnapshotWriter
from varve.shapes.topic import ShapeTopic

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

logger = logging.getLogger(__name__)

SCAN_SHAPES_MAX: Final = 512
"""Shapes that share one scan: each has a buffer, and a file once that is full."""
_PUBLISHED_AFTER_ROWS: Final = 4096
"""Rows of the table after which the rows written so far become visible to readers."""
CHECKED_BYTES: Final = 16 << 20
"""Bytes of snapshots after which the limit of the bytes of all shapes is checked."""


class Snapshotter:
    """Writes the snapshots of the shapes of a topic that wait for one."""

    def __init__(self, engine: "ShapeEngine") -> None:
        self._engine = engine

    def run(self, topic: ShapeTopic) -> int:
        """Writes the snapshots of all waiting shapes; returns the number written."""
        written = 0
        if topic.begin_snapshots():
            try:
                while waiting := topic.take_waiting(SCAN_SHAPES_MAX):
                    written += self._serve(topic, waiting)
            except BaseException:
                topic.end_snapshots()
                raise
        return written

    def _serve(self, topic: ShapeTopic, waiting: list[Shape]) -> int:
        try:
            return self._write(topic, waiting)
        except Exception as error:
            # The top of a task: catch any error, so that clients get it instead of waiting. The
            # shapes of a topic that has ended are dropped with it, or at the next start.
            if not topic.is_ended:
                self.fail([shape for shape in waiting if not shape.is_snapshot_complete], error)
            return 0

    def _write(self, topic: ShapeTopic, waiting: list[Shape]) -> int:
        shapes = [shape for shape in waiting if self._prepare(shape)]
        if not shapes:
            return 0
        try:
            view = topic.join(shapes)
        except Closed:
            topic.put_back_waiting(shapes)
            return 0
        with view:
            scan = _SnapshotScan(self, topic, shapes, view)
            try:
                scan.read()
            except BaseException:
                scan.abandon()
                raise
        engine = self._engine
        finished = engine.flush_pool.map(scan.finish, list(scan.writers))
        done = [shape for shape in finished if shape is not None]
        if done:
            engine.registry.complete({shape.handle: shape.start for shape in done})
        for shape in done:
            shape.snapshot_complete()
        engine.metrics.add(SNAPSHOT_ROWS, scan.rows)
        engine.metrics.add(SNAPSHOTS, len(done))
        self.publish(done)
        return len(done)

    def _prepare(self, shape: Shape) -> bool:
        try:
            if not shape.is_open:
                shape.adopt(self._engine.create_storage(shape.handle))
        except (StoreError, OSError) as error:
            self.fail([shape], error)
        return not shape.is_dropped

    def publish(self, shapes: Collection[Shape]) -> None:
        """Notifies clients that wait for the snapshots of shapes."""
        self._engine.publish([shape.handle for shape in shapes])

    def check_bytes(self, snapshot_bytes: int) -> None:
        """Evicts shapes for a snapshot of so many bytes; raises Unavailable if it is too large."""
        self._engine.eviction.check_snapshot(snapshot_bytes)

    def fail(self, shapes: Collection[Shape], error: Exception) -> None:
        """Drops shapes, except those that were dropped for another reason meanwhile."""
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
        self._engine.removal.drop(failed, DropReason.SNAPSHOT_FAILED)


class _SnapshotScan:
    """One scan of a table view that writes the snapshots of some shapes."""

    def __init__(
        self, snapshotter: Snapshotter, topic: ShapeTopic, shapes: list[Shape], view: TableView
    ) -> None:
        self._snapshotter = snapshotter
        self._topic = topic
        self._view = view
        self._index: FilterIndex[Shape] = FilterIndex()
        self.writers: dict[Shape, SnapshotWriter] = {}
        self._started: set[Shape] = set()
        self._end = snapshot_end(view.position)
        self.rows = 0
        self._sizes: Counter[Shape] = Counter()
        self._unchecked_bytes = 0
        for shape in shapes:
            try:
                self.writers[shape] = SnapshotWriter(shape.open().snapshot)
            except (StoreError, OSError) as error:
                self._snapshotter.fail([shape], error)
        self._indexed = {writer for writer in self.writers if writer.definition.log is LogMode.FULL}
        for shape in self._indexed:
            self._index.add(shape, shape.definition.where)

    def read(self) -> None:
        """Writes all rows to the shapes that match, except those that are dropped meanwhile.

        Raises Closed when the topic ends.
        """
        if not self._indexed:
            return
        for scanned, (key, row) in enumerate(self._view.rows(), start=1):
            shapes = self._index.matches(row)
            if shapes:
                self._write(shapes, key, row)
            if scanned % _PUBLISHED_AFTER_ROWS == 0:
                if self._topic.is_ended:
                    raise Closed(f"topic {self._topic.topic} ended during the scan")
                self._check_bytes()
                self._publish_rows()
                if not self._indexed:
                    return

    def finish(self, shape: Shape) -> Shape | None:
        """Completes the snapshot of a shape; None if it was dropped or fails."""
        writer = self.writers[shape]
        if shape.is_dropped:
            writer.abandon()
            return None
        try:
            writer.finish(self._end)
        except Exception as error:
            # The top of a task, as above.
            writer.abandon()
            self._snapshotter.fail([shape], error)
            return None
        return shape

    def abandon(self) -> None:
        """Ends without a snapshot; waiting readers get an error."""
        for writer in self.writers.values():
            writer.abandon()

    def _write(self, shapes: Collection[Shape], key: str, row: Row) -> None:
        texts: dict[MessageEncoder, bytes] = {}
        for shape in list(shapes):
            encoder = shape.encoder
            if encoder not in texts:
                texts[encoder] = encoder.snapshot_row(key, row)
            try:
                self.writers[shape].add(texts[encoder])
                self.rows += 1
                self._sizes[shape] += len(texts[encoder])
                self._unchecked_bytes += len(texts[encoder])
            except (StoreError, OSError) as error:
                self._fail_shape(shape, error)

    def _check_bytes(self) -> None:
        """Fails the largest snapshot if the shapes take too much disk."""
        if self._unchecked_bytes < CHECKED_BYTES:
            return
        self._unchecked_bytes = 0
        largest = max(self._indexed, key=lambda shape: self._sizes[shape])
        try:
            self._snapshotter.check_bytes(self._sizes[largest])
        except Unavailable as error:
            self._fail_shape(largest, error)

    def _publish_rows(self) -> None:
        """Lets readers start, and leaves out shapes that were dropped."""
        for shape in [shape for shape in self._indexed if shape.is_dropped]:
            self._leave(shape)
        shown = []
        for shape in self._indexed - self._started:
            try:
                self.writers[shape].flush()
                is_started = shape.open().snapshot.is_started
            except (StoreError, OSError) as error:
                self._fail_shape(shape, error)
                continue
            if is_started:
                shape.is_snapshot_started = True
                shown.append(shape)
        self._started.update(shown)
        self._snapshotter.publish(shown)

    def _fail_shape(self, shape: Shape, error: Exception) -> None:
        self._snapshotter.fail([shape], error)
        self._leave(shape)

    def _leave(self, shape: Shape) -> None:
        self._index.remove(shape)
        self._indexed.discard(shape)
        self.writers.pop(shape).abandon()
