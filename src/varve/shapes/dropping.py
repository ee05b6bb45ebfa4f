"""The end of shapes: turned away at once, forgotten, their files moved to the trash.

Invariant  a shape is dropped once, for the first reason given; whoever follows it is told after it
           can be found no more.
Crash      a shape that the registry has forgotten leaves a directory, which upkeep removes.
Threads    any; holds no lock of its own.
"""

import logging
from collections.abc import Callable, Collection

from varve.foundation.errors import Unavailable
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

    def drop(self, shapes: Collection[Shape], reason: DropReason) -> None:
        """Ends shapes for good; one that was dropped before stays so."""
        gone = [shape for shape in shapes if shape.mark_dropped(reason)]
        if not gone:
            return
        handles = [shape.handle for shape in gone]
        self._catalog.remove(gone)
        try:
            self._unregister(handles)
        except Unavailable as error:
            # Whoever drops has other shapes in hand. The registry makes up for it, and after a
            # restart before that the row finds no files.
            logger.error("registry keeps shapes that are gone", exc_info=error)
        self._remove(gone)
        self._metrics.add(DROPPED, len(gone), reason)
        logger.info(
            "shapes dropped", extra={"reason": str(reason), "handles": handles[:_LOGGED_MAX]}
        )
        self._listeners.tell(handles)

    def _remove(self, gone: Collection[Shape]) -> None:
        for shape in gone:
            topic = self._topics.find(shape.definition.topic)
            if topic is not None:
                topic.remove(shape)
            if not shape.remove_storage():
                self._leftovers.discard(shape.handle)

    def storage_failed(self, shape: Shape, error: BaseException) -> None:
        logger.error("storage of a shape failed", exc_info=error, extra={"handle": shape.handle})
        self.drop([shape], DropReason.STORAGE_FAILED)

    def topic_gone(self, topic: TopicShapes) -> None:
        """Called by the feed's own thread; upkeep ends what is left of the topic."""
        topic.is_gone = True
        topic.end_turns()
        topic.needs_opening()
        self.drop_all(topic)

    def drop_all(self, topic: TopicShapes) -> None:
        """Drops the shapes of a topic whose feed has ended: another feed knows nothing of them."""
        shapes = [one for one in self._catalog.shapes() if one.definition.topic == topic.topic]
        self.drop(shapes, DropReason.SOURCE_LOST)
