"""A small JSON document that is stored in every log directory.

Layout     `format`, `version`, and the document's own names. docs/reference/formats/directory.md
Invariant  the version rises with every write; the highest one counts. A document that cannot be
           read is an error: lost ACLs would grant or revoke permissions.
Crash      written to a temporary file that is renamed. A write that fails uses up its
           version, because some directories may have it.
Threads    one at a time; its owner takes care of that.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from varve.commit_log.health import DirectoryHealth
from varve.disk import FileSystem, JsonDocument, write_atomically
from varve.foundation.errors import (
    Corrupt,
    DirectoryOffline,
    InvalidRequest,
    Unavailable,
    UnsupportedFormat,
)

T = TypeVar("T")

_FORMAT: Final = JsonDocument(version=1, max_bytes=1 << 30)
_VERSION_MAX: Final = 2**63 - 1


class DirectoryDocument:
    """The document of one name; a private one is for its owner alone to read."""

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[DirectoryHealth],
        name: str,
        *,
        is_private: bool = False,
    ) -> None:
        self._fs = fs
        self._directories = directories
        self._is_private = is_private
        self.name = name
        self.version = 0

    @property
    def _live(self) -> list[DirectoryHealth]:
        return [directory for directory in self._directories if directory.failure is None]

    @property
    def where(self) -> str:
        """The path of the first copy, for error messages."""
        return f"{self._directories[0].path}/{self.name}"

    def read(self) -> Mapping[str, Any]:
        """The newest document, empty where there is none yet.

        Raises Corrupt for one that is not of the format, Unavailable for one that cannot be read.
        """
        documents = [self._read_one(directory) for directory in self._live]
        version, content = max(documents, key=lambda document: document[0], default=(0, {}))
        self.version = version
        return content

    def read_as(self, decode: Callable[[Mapping[str, Any]], T]) -> T:
        """The newest document, decoded; raises Corrupt for one that cannot be."""
        content = self.read()
        try:
            return decode(content)
        except (ValueError, TypeError, KeyError, AttributeError, InvalidRequest) as error:
            raise _corrupt(self.where, error) from error

    def _read_one(self, directory: DirectoryHealth) -> tuple[int, Mapping[str, Any]]:
        path = f"{directory.path}/{self.name}"
        try:
            content = _FORMAT.read(self._fs, path)
        except OSError as error:
            raise Unavailable(
                f"{path}: {error.strerror}; repair the disk or its permissions and open it again"
            ) from error
        except UnsupportedFormat:
            raise
        except Corrupt as error:
            raise _corrupt(path, error) from error
        if content is None:
            return 0, {}
        version = content.get("version")
        if type(version) is not int or not 1 <= version < _VERSION_MAX:
            raise _corrupt(path, ValueError(f"version {version!r:.40}"))
        return version, content

    def write(self, content: Mapping[str, Any]) -> None:
        """Writes the document to every live directory; one that fails goes offline.

        A full disk refuses the change.
        """
        self.version += 1
        data = _FORMAT.encode({"version": self.version, **content})
        for directory in self._live:
            path = f"{directory.path}/{self.name}"
            try:
                write_atomically(self._fs, path, data, is_private=self._is_private)
            except OSError as error:
                failure = directory.failed(error, f"writing {self.name}")
                if not isinstance(failure, DirectoryOffline):
                    raise failure from error
        if not self._live:
            raise DirectoryOffline(
                f"no log directory is online to keep {self.name}; repair one and reopen the store"
            )


def _corrupt(where: str, error: Exception) -> Corrupt:
    """For a document that cannot be decoded."""
    return Corrupt(
        f"{where}: not a table that varve wrote ({type(error).__name__}: {error!s:.80}); restore "
        "it from another log directory or a backup, or remove it to start without its contents"
    )
