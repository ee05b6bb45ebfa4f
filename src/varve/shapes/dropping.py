"""The end of shapes: turned away at once, forgotten, their files moved to the trash.

Invariant  a shape is dropped once, for the first reason given; whoever follows it is told after it
           can be found no more. A disk that fails keeps nobody from dropping: who drops has other
           shapes in hand.
Crash      a shape that the registry has forgotten leaves a directory, which upkeep removes. One
           without a directory is dropped when it is opened. With both it would be taken up again,
           so the table of its topic is not written until one of them is gone (`settle`).
Threads    any; `_ended` guards what is under way and what is stuck. It is taken behind the locks of
           topics and before those of shapes.
"""

import logging
import threading
from collections.abc import Callable, Collection, Mapping

from varve.foundation.errors import Closed, Unavailable
from varve.foundation.metrics import MetricTable
from varve.shapes.catalog import Catalog
from varve.shapes.leftovers import Leftovers
from varve.shapes.listeners import Listeners
from varve.shapes.metrics import DROPPED
from varve.shapes.shape import DropReason, Shape
from varve.shapes.topic_shapes import TopicShapes
from varve.shapes.topics import Topics

logger = logging.getLogger(__name__)

_LOGGED_MAX = 20


class Dropping:
    """Drops the shapes of one engine."""

    def __init__(
        self,
        catalog: Catalog,
        topics: Topics,
        *,
        unregister: Callable[[Collection[str]], None],
        leftovers: Leftovers,
        listeners: Listeners,
        metrics: MetricTable,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._unregister = unregister
        self._leftovers = leftovers
        self._listeners = listeners
        self._metrics = metrics
        self._ended = threading.Condition()
        # Topics by handle, guarded by _ended. Who is stuck has its row and its files.
        self._under_way: dict[str, str] = {}
        self._stuck: dict[str, str] = {}
        self._is_ended = False  # guarded by _ended

    def drop(self, shapes: Collection[Shape], reason: DropReason) -> None:
        """Ends shapes for good; one that was dropped before stays so. Closed behind `end`."""
        with self._ended:
            if self._is_ended:
                raise Closed("shapes are dropped no more, the engine is closed: open it again")
            gone = [shape for shape in shapes if shape.mark_dropped(reason)]
            topics = {shape.handle: shape.definition.topic for shape in gone}
            self._under_way.update(topics)
        if not gone:
            return
        handles, is_forgotten, is_removed = list(topics), False, False
        try:
            self._catalog.remove(gone)
            is_forgotten = self._forget(handles)
            self._remove(gone)
            if not is_forgotten:
                # A crash tells by their files alone that they are gone.
                for handle in handles:
                    self._leftovers.sync(handle)
            is_removed = True
        finally:
            if not is_removed:
                # Nobody knows how far it came: what is in its place still is moved by upkeep.
                self._leftovers.owe(handles)
            self._end(topics, is_forgotten=is_forgotten)
        self._metrics.add(DROPPED, len(gone), reason)
        logger.info(
            "shapes dropped", extra={"reason": str(reason), "handles": handles[:_LOGGED_MAX]}
        )
        self._listeners.tell(handles)

    def end(self) -> None:
        """Waits for drops that are under way; there are no more."""
        with self._ended:
            self._is_ended = True
            self._ended.wait_for(lambda: not self._under_way)

    def _forget(self, handles: Collection[str]) -> bool:
        """False if the registry keeps them for now; it makes up for it with its next change."""
        try:
            self._unregister(handles)
        except Unavailable as error:
            logger.error("registry keeps shapes that are gone", exc_info=error)
            return False
        return True

    def _remove(self, gone: Collection[Shape]) -> None:
        for shape in gone:
            topic = self._topics.find(shape.definition.topic)
            if topic is not None:
                topic.remove(shape)
            try:
                if not shape.remove_storage():
                    self._leftovers.discard(shape.handle)
            except OSError as error:
                self._leftovers.postpone(shape.handle, error)

    def _end(self, topics: Mapping[str, str], *, is_forgotten: bool) -> None:
        with self._ended:
            for handle, topic in topics.items():
                del self._under_way[handle]
                if not is_forgotten and self._leftovers.owes(handle):
                    self._stuck[handle] = topic
            self._ended.notify_all()

    def settle(self, topic: str, wait_ms: int) -> bool:
        """Whether no shape of a topic that was dropped before can be taken up after a crash.

        Waits for drops that are under way. Raises Unavailable while the disk keeps such a shape.
        """
        with self._ended:
            stuck = [handle for handle, its in self._stuck.items() if its == topic]
            kept = [handle for handle in stuck if self._leftovers.owes(handle)]
            if kept:
                self._unregister(kept)
            for handle in stuck:
                del self._stuck[handle]
            begun = {handle for handle, its in self._under_way.items() if its == topic}
            return self._ended.wait_for(
                lambda: begun.isdisjoint(self._under_way), timeout=wait_ms / 1000
            )

    def storage_failed(self, shape: Shape, error: BaseException) -> None:
        logger.error("storage of a shape failed", exc_info=error, extra={"handle": shape.handle})
        self.drop([shape], DropReason.STORAGE_FAILED)

    def topic_gone(self, topic: TopicShapes) -> None:
        """Called by the feed's own thread; upkeep ends what is left of the topic."""
        topic.is_gone = topic.is_given_up = True
        topic.end_turns()
        topic.needs_opening()
        self._topics.miss(topic)
        self.drop_all(topic)

    def drop_all(self, topic: TopicShapes) -> None:
        """Drops the shapes of a topic whose feed has ended: another feed knows nothing of them."""
        shapes = [one for one in self._catalog.shapes() if one.definition.topic == topic.topic]
        self.drop(shapes, DropReason.SOURCE_LOST)
