"""What the gates of a broker share: the disk, the clock, and one engine for all ids.

Threads    any. The engine is made at the first call, as most servers never need one.
"""

import random
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from varve.disk import FileSystem, RealFileSystem
from varve.foundation.clock import Clock

if TYPE_CHECKING:
    from varve.rocks.database import Databases


class GatePlace:
    """`boot` names the start of the machine: while it is the same, no write is lost by a crash."""

    def __init__(
        self,
        *,
        file_system: FileSystem,
        clock: Clock,
        random: random.Random,
        boot: str,
        make_databases: "Callable[[], Databases] | None" = None,
    ) -> None:
        self.file_system = file_system
        self.clock = clock
        self.random = random
        self.boot = boot
        self._make_databases = make_databases or self._make_fit
        self._lock = threading.Lock()
        self._databases: Databases | None = None  # guarded by _lock

    def databases(self) -> "Databases":
        """The engine, with one budget of memory for all gates."""
        with self._lock:
            if self._databases is None:
                self._databases = self._make_databases()
            return self._databases

    def _make_fit(self) -> "Databases":
        """Ids lie where the logs do: on the disk, or on what stands for one."""
        # Neither is loaded by a server without such topics.
        if isinstance(self.file_system, RealFileSystem):
            from varve.rocks.database import RocksDatabases

            return RocksDatabases()
        from varve.rocks.memory_database import MemoryDatabases

        return MemoryDatabases(self.file_system)
