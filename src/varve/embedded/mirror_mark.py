"""Whether the mirror of a cold tier lacked nothing when this store last wrote to it.

Layout     `varve-mirror-level` in every log directory that is online, with the URLs of both stores.
           Unless all of them have it nothing is known, and the stores are compared.
Crash      removed durably from one directory at least before a write that leaves the mirror behind
           returns; see `varve.object_store.mirror`.
"""

import json
import logging
from collections.abc import Sequence
from typing import Final

from varve.disk import FileSystem, write_atomically
from varve.foundation.errors import Unavailable

logger = logging.getLogger(__name__)

MARK_FILE: Final = "varve-mirror-level"


class MirrorInSyncFile:
    """An InSyncFlag in log directories, for two stores by their URLs."""

    def __init__(
        self, fs: FileSystem, directories: Sequence[str], *, url: str, mirror: str
    ) -> None:
        self._fs = fs
        self._directories = directories
        self._data = json.dumps({"url": url, "mirror": mirror}).encode() + b"\n"

    def is_set(self) -> bool:
        try:
            return all(
                self._fs.read(f"{one}/{MARK_FILE}") == self._data for one in self._directories
            )
        except OSError:
            return False

    def set(self) -> None:
        """Where that fails nothing is known, and the next to open compares the stores."""
        for directory in self._directories:
            try:
                write_atomically(self._fs, f"{directory}/{MARK_FILE}", self._data)
            except OSError as error:
                logger.warning(
                    "it cannot be remembered that the mirror of the cold tier lacks nothing",
                    extra={"directory": directory, "error": str(error)},
                )

    def clear(self) -> None:
        """Raises Unavailable where no directory lets go of it."""
        failure: OSError | None = None
        for directory in self._directories:
            try:
                if self._fs.exists(f"{directory}/{MARK_FILE}"):
                    self._fs.remove(f"{directory}/{MARK_FILE}")
                self._fs.sync_directory(directory)
            except OSError as error:
                failure = error
            else:
                return
        raise Unavailable(
            f"{MARK_FILE} cannot be removed from {', '.join(self._directories)}: {failure}; the "
            "mirror of the cold tier is left behind, and who opens the store must know it: mend "
            "the disk"
        ) from failure
