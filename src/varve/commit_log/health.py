"""Health of log directories and their logs: converts I/O errors and takes a directory offline.

Invariant  the first failure is kept. A log that has not failed itself reports the failure of its
           directory; the failure of a log takes its directory offline, and no other directory.
Crash      after a failed sync nothing more is written to a log: the content of the disk is unknown
           until recovery.
Threads    any.
"""

import contextlib
import errno
import logging
from collections.abc import Iterator
from typing import Final

from varve.commit_log.names import SYNC_FAILED_FILE, TopicPartition
from varve.disk import DiskProblem, FileSystem, classify_error, describe_error, to_store_error
from varve.foundation.errors import (
    Closed,
    DirectoryOffline,
    LogPoisoned,
    StoreError,
)

logger = logging.getLogger(__name__)

# Problems that reject one operation and leave the log usable.
_REFUSALS: Final = (DiskProblem.FULL, DiskProblem.NO_DESCRIPTORS)


def raise_unless_derived(error: Exception) -> None:
    """Raises the error of reading a derived file if rebuilding the file would meet it as well.

    A file that cannot be read is rebuilt like one that is missing: if the whole disk fails, reading
    the data does too.
    """
    if isinstance(error, OSError) and classify_error(error) is DiskProblem.NO_DESCRIPTORS:
        raise error


class _Health:
    """Base of the health of a log and of a log directory; messages begin with `prefix`."""

    after_refusal = "try again"

    def __init__(self, path: str, prefix: str = "") -> None:
        self.path = path
        self.prefix = prefix
        self.failure: StoreError | None = None

    def fail(self, failure: StoreError) -> None:
        raise NotImplementedError

    @contextlib.contextmanager
    def io(self, operation: str) -> Iterator[None]:
        """Converts an OSError in the block by `failed`."""
        try:
            yield
        except OSError as error:
            raise self.failed(error, operation) from error

    def failed(self, error: OSError, operation: str) -> StoreError:
        """The error to raise instead.

        A full disk or too many open files only rejects the operation; every other error takes the
        directory offline. A failed sync, whatever the error, poisons the log: `LogHealth.poison`.
        """
        if classify_error(error) in _REFUSALS:
            what = f"{self.prefix}{operation}"
            return to_store_error(error, what, path=self.path, then=self.after_refusal)
        return self.offline(error, operation)

    def offline(self, error: OSError, operation: str) -> StoreError:
        """Records a failure, whatever the kind of error, and returns the error to raise."""
        remedy = classify_error(error).remedy
        failure = DirectoryOffline(
            f"{self.prefix}{operation}: {describe_error(error, self.path)}; {remedy} and reopen"
        )
        self.fail(failure)
        return failure


def cannot_open(error: OSError, path: str) -> DirectoryOffline:
    """Why a log directory cannot be opened or created, and what to do."""
    problem = classify_error(error)
    remedy = f"{problem.remedy} and reopen"
    if problem is DiskProblem.DENIED:
        remedy = "give this user access with chmod or chown, or name another path"
    elif error.errno == errno.ENOENT:
        remedy = "name another directory"
    return DirectoryOffline(f"cannot open log directory {describe_error(error, path)}; {remedy}")


class DirectoryHealth(_Health):
    """Whether a log directory is online; while offline, its partitions raise its failure."""

    def fail(self, failure: StoreError) -> None:
        if self.failure is None:
            self.failure = failure
            logger.error(
                "%(path)s: log directory offline: %(error)s",
                {"path": self.path, "error": str(failure)},
            )

    def check_online(self) -> None:
        if self.failure is not None:
            raise DirectoryOffline(f"log directory {self.path} is offline: {self.failure}")


class LogHealth(_Health):
    """Whether a log accepts appends and reads."""

    after_refusal = "try again; nothing was changed"

    def __init__(
        self, fs: FileSystem, path: str, partition: TopicPartition, directory: DirectoryHealth
    ) -> None:
        super().__init__(path, prefix=f"{partition}: ")
        self._fs = fs
        self._directory = directory

    @property
    def is_usable(self) -> bool:
        return self.failure is None and self._directory.failure is None

    def check_usable(self) -> None:
        if self.failure is not None:
            raise self.failure.again()
        self._directory.check_online()

    def check_readable(self) -> None:
        """As `check_usable`, but a poisoned log passes: a failed sync changes nothing readable."""
        if not isinstance(self.failure, LogPoisoned):
            self.check_usable()

    def fail(self, failure: StoreError) -> None:
        if self.failure is None:
            self.failure = failure
            self._directory.fail(failure)

    def poison(self, error: OSError) -> StoreError:
        """Records a failed sync: the log accepts no more writes."""
        with contextlib.suppress(OSError):  # this file makes recovery rewrite the unsynced data
            self._fs.open_writable(f"{self.path}/{SYNC_FAILED_FILE}").close()
        failure = LogPoisoned(
            f"{self.prefix}sync of {describe_error(error, self.path)}; "
            "what the disk holds is unknown, reopen the store to recover"
        )
        self.fail(failure)
        return failure

    def close(self) -> None:
        if self.failure is None:
            self.failure = Closed(f"{self.prefix}the log is closed; open it again")
