"""Remembers a failed sync until the bytes in doubt are written anew.

After a failed sync the system may take the bytes for written: reads show them, later syncs pass
them over, and a power loss takes them together with all that was acknowledged behind them. Writing
them once more makes them due again.

Layout     an empty file in the partition's directory; Kafka ignores its name.
Crash      the note itself is not synced: a restart of the machine that loses it also loses what
           memory showed, and recovery then sees what the disk holds.
"""

import contextlib
from collections.abc import Iterable
from typing import Final

from varve.commit_log.names import LOG, OWN_PREFIX
from varve.commit_log.segment import Segment
from varve.disk import FileSystem

SYNC_FAILED_FILE: Final = OWN_PREFIX + "sync-failed"
_CHUNK_BYTES: Final = 4 << 20


def note_failed_sync(fs: FileSystem, directory: str) -> None:
    """Leaves the note as far as the disk allows."""
    with contextlib.suppress(OSError):
        fs.open_writable(f"{directory}/{SYNC_FAILED_FILE}").close()


def has_failed_sync(fs: FileSystem, directory: str) -> bool:
    return fs.exists(f"{directory}/{SYNC_FAILED_FILE}")


def write_anew(fs: FileSystem, directory: str, segments: Iterable[Segment]) -> None:
    """Writes the data of the segments over itself, syncs it and takes the note away."""
    for segment in segments:
        with fs.open_writable(segment.path(LOG)) as file:
            for position in range(0, segment.size, _CHUNK_BYTES):
                size = min(_CHUNK_BYTES, segment.size - position)
                file.write_at(position, file.read_at(position, size))
            file.sync()
    fs.remove(f"{directory}/{SYNC_FAILED_FILE}")
