"""Drops shapes: removes them from memory and registry, and moves their files to the trash.

Layout     <root>/.trash/<handle>: directories of dropped shapes until maintenance deletes them.
Invariant  a shape is dropped once, for the first reason given; its clients are notified after it
           can no longer be found. An I/O error does not prevent a drop, and a directory that cannot
           be moved or deleted delays no other. A shape is in the registry before its directory is
           created, so a directory without a row belongs to no shape.
Crash      maintenance removes a directory whose row was removed. A shape without a directory is
           dropped when it is opened. A shape with both would be resumed, so the table of its topic
           is not written until one of them is removed (`wait_until_durable`).
Threads    any thread drops; one at a time runs `clean_up`. `_changed` guards the drops in
           progress, and no file and no database is used under it. It is taken before the locks of
           shapes.
"""

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from varve.foundation.errors import Closed, Unavailable
from varve.shapes.metrics import DROPPED
from varve.shapes.shape import DropReason, Shape
from varve.shapes.storage.layout import (
    discard_scratch,
    list_handles,
    list_trash,
    move_to_trash,
    sync_parent,
)

if TYPE_CHECKING:
    from varve.shapes.engine import ShapeEngine

logger = logging.getLogger(__name__)

REMOVED_MAX: Final = 10_000
"""Directories that one round deletes from the trash, because maintenance has more to do."""
_LOGGED_MAX: Final = 20


class ShapeRemoval:
    """Drops the shapes of one engine, and deletes the directories of no shape."""

    def __init__(self, engine: "ShapeEngine") -> None:
        self._engine = engine
        self._fs = engine.fs
        self._root = engine.root
        self._registry = engine.registry
        self._changed = threading.Condition()
        # Topics by handle, guarded by _changed.
        self._in_progress: dict[str, str] = {}
        self._resumable: dict[str, str] = {}  # these have their rows and their files
        self._unmoved: set[str] = set()  # guarded by _changed; handles whose directories remain
        self._is_ended = False  # guarded by _changed
        self._is_swept = False
        self._is_cleanup_ended = False

    # Shapes

    def drop(self, shapes: Collection[Shape], reason: DropReason) -> None:
        """Drops shapes for good; those already dropped stay so. Raises Closed after `end`."""
        dropped = self._begin(shapes, reason)
        if not dropped:
            return
        handles = [shape.handle for shape in dropped]
        is_unregistered = is_removed = False
        try:
            self._registry.hide(dropped)
            is_unregistered = self._unregister(handles)
            # After a crash only the missing files say that a shape with a row was dropped.
            self._remove_files(dropped, is_synced=not is_unregistered)
            is_removed = True
        finally:
            if not is_removed:
                # It failed at an unknown step: maintenance moves the remaining directories.
                self._move_later(handles)
            self._finish(dropped, is_unregistered=is_unregistered)
        self._engine.metrics.add(DROPPED, len(dropped), reason)
        logger.info(
            "shapes dropped", extra={"reason": str(reason), "handles": handles[:_LOGGED_MAX]}
        )
        self._engine.publish(handles)

    def drop_failed(self, errors: Mapping[Shape, BaseException]) -> None:
        """Drops shapes whose storage failed, except those that were dropped for another reason."""
        failed = [shape for shape in errors if not shape.is_dropped]
        for shape in failed:
            logger.error(
                "storage of a shape failed", exc_info=errors[shape], extra={"handle": shape.handle}
            )
        if failed:
            self.drop(failed, DropReason.STORAGE_FAILED)

    def drop_topic(self, topic: str) -> None:
        """Drops the shapes of a topic whose feed has ended: another feed cannot continue them."""
        shapes = [shape for shape in self._registry.shapes() if shape.definition.topic == topic]
        self.drop(shapes, DropReason.SOURCE_LOST)

    def end(self) -> None:
        """Waits for drops in progress, and allows no more."""
        with self._changed:
            self._is_ended = True
            self._changed.wait_for(lambda: not self._in_progress)

    def wait_until_durable(self, topic: str, wait_ms: int) -> bool:
        """Whether no shape of a topic that was dropped before can be resumed after a crash.

        Waits for drops in progress. Raises Unavailable while the disk keeps such a shape.
        """
        with self._changed:
            dropping = {handle for handle, name in self._in_progress.items() if name == topic}
            if not self._changed.wait_for(
                lambda: dropping.isdisjoint(self._in_progress), timeout=wait_ms / 1000
            ):
                return False
            resumable = {handle for handle, name in self._resumable.items() if name == topic}
            unmoved = resumable & self._unmoved
        if unmoved:
            self._registry.remove(unmoved)
        with self._changed:
            for handle in resumable:
                self._resumable.pop(handle, None)
        return True

    def _begin(self, shapes: Collection[Shape], reason: DropReason) -> list[Shape]:
        """Marks shapes as dropped, so that they reject reads and writes; returns the new ones."""
        with self._changed:
            if self._is_ended:
                raise Closed(
                    "the engine of shapes is closed and drops no more: open the directory again"
                )
            dropped = [shape for shape in shapes if shape.mark_dropped(reason)]
            self._in_progress.update({shape.handle: shape.definition.topic for shape in dropped})
        return dropped

    def _unregister(self, handles: Collection[str]) -> bool:
        """Removes the rows of shapes; False if that failed: the registry's next change does it."""
        try:
            self._registry.remove(handles)
        except Unavailable as error:
            logger.error("registry keeps shapes that were dropped", exc_info=error)
            return False
        return True

    def _remove_files(self, dropped: Collection[Shape], *, is_synced: bool) -> None:
        for shape in dropped:
            shape.topic.remove(shape)
            try:
                if not shape.remove_storage():
                    move_to_trash(self._fs, self._root, shape.handle)
                if is_synced:
                    sync_parent(self._fs, self._root, shape.handle)
            except OSError as error:
                self._move_later([shape.handle], error)

    def _finish(self, dropped: Collection[Shape], *, is_unregistered: bool) -> None:
        with self._changed:
            for shape in dropped:
                topic = self._in_progress.pop(shape.handle)
                if not is_unregistered and shape.handle in self._unmoved:
                    self._resumable[shape.handle] = topic
            self._changed.notify_all()

    # Directories

    def discard_incomplete(self, handles: Iterable[str]) -> None:
        """Discards unfinished files of an earlier run; nothing else uses the directory yet."""
        try:
            discard_scratch(self._fs, self._root)
        except OSError as error:
            logger.warning("scratch files of compactions cannot be moved yet", exc_info=error)
        for handle in handles:
            self._discard(handle)

    def clean_up(self) -> None:
        """Moves and deletes the directories of no shape; then raises the first I/O error.

        The data directory is listed once, by the first call.
        """
        failures: list[OSError] = []
        for step in (self._sweep, self._move_unmoved, self._empty_trash):
            try:
                step(failures)
            except OSError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def end_cleanup(self) -> None:
        """Ends `clean_up` early; the next start continues."""
        self._is_cleanup_ended = True

    def _discard(self, handle: str) -> None:
        """Moves the directory of a shape to the trash if there is one, now or later."""
        try:
            move_to_trash(self._fs, self._root, handle)
        except OSError as error:
            self._move_later([handle], error)

    def _move_later(self, handles: Collection[str], error: OSError | None = None) -> None:
        """The next rounds move these directories if they are still there, and sync the move."""
        if error is not None:
            logger.warning(
                "directory of a dropped shape cannot be moved yet",
                exc_info=error,
                extra={"handles": list(handles)},
            )
        with self._changed:
            self._unmoved.update(handles)

    def _sweep(self, failures: list[OSError]) -> None:
        if self._is_swept:
            return
        for handle in list_handles(self._fs, self._root):
            if self._registry.find(handle) is None:
                logger.info("directory of no shape is removed", extra={"handle": handle})
                self._discard(handle)
        self._is_swept = True

    def _move_unmoved(self, failures: list[OSError]) -> None:
        with self._changed:
            unmoved = list(self._unmoved)
        for handle in unmoved:
            try:
                move_to_trash(self._fs, self._root, handle)
                sync_parent(self._fs, self._root, handle)
            except OSError as error:
                failures.append(error)
                continue
            with self._changed:
                self._unmoved.remove(handle)

    def _empty_trash(self, failures: list[OSError]) -> None:
        removed_count = 0
        for path in list_trash(self._fs, self._root):
            if self._is_cleanup_ended or removed_count == REMOVED_MAX:
                return
            try:
                self._fs.remove_tree(path)
                removed_count += 1
            except OSError as error:
                failures.append(error)
