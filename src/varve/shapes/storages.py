"""The storage of an engine's shapes: made for new ones, opened for those of earlier runs.

Invariant  a shape that holds more than its topic had when that was opened is not opened.
Threads    any; a shape opens its storage under its own lock.
"""

from varve.disk import FileSystem
from varve.foundation.clock import Clock
from varve.foundation.errors import Corrupt
from varve.shapes.shape import Shape
from varve.shapes.storage.settings import StorageSettings
from varve.shapes.storage.storage import ShapeStorage
from varve.shapes.topics import Topics


class Storages:
    """Makes and opens the directories below one root."""

    def __init__(
        self,
        fs: FileSystem,
        root: str,
        topics: Topics,
        *,
        settings: StorageSettings,
        clock: Clock,
    ) -> None:
        self._fs = fs
        self._root = root
        self._topics = topics
        self._settings = settings
        self._clock = clock

    def create(self, handle: str) -> ShapeStorage:
        """The storage of a new shape; raises StoreError and OSError."""
        return ShapeStorage.create(self._fs, self._root, handle, self._settings, self._clock)

    def open(self, shape: Shape) -> ShapeStorage:
        """The storage of a shape with a snapshot; raises NotFound, and Corrupt if it is unfit."""
        storage = ShapeStorage.open(self._fs, self._root, shape.handle, self._settings, self._clock)
        try:
            self._topics.get(shape.definition.topic).check_opened(shape, storage.latest)
        except Corrupt:
            storage.drop()
            raise
        return storage
