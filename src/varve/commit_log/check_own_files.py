"""Checks varve's own files beside a partition's segments, as far as the log itself knows them.

Invariant  reads only. What key indexes and evidence hold is the business of whoever writes them.
"""

from collections.abc import Sequence

from varve.commit_log.append_times import ENTRY_BYTES, decode_append_times
from varve.commit_log.finding import FindingList
from varve.commit_log.names import APPEND_TIMES_FILE, KEYS, parse_file_name
from varve.disk import FileInfo, FileSystem


def check_own_files(
    fs: FileSystem, directory: str, entries: Sequence[FileInfo], found: FindingList
) -> None:
    """What is wrong with key indexes from without, and with the append times."""
    for entry in entries:
        path = f"{directory}/{entry.name}"
        if entry.is_directory:
            _check_directory(path, entry.name, found)
        elif entry.name == APPEND_TIMES_FILE:
            _check_append_times(fs, path, found)


def _check_directory(path: str, name: str, found: FindingList) -> None:
    file = parse_file_name(name)
    if file is not None and file.kind == KEYS:
        message = "a directory where the key index belongs: the partition is not compacted until "
        found.error(path, "not-a-file", message + "it is moved away")
    elif name == APPEND_TIMES_FILE:
        message = "a directory where append times belong: the log cannot be opened until it is "
        found.error(path, "not-a-file", message + "moved away")


def _check_append_times(fs: FileSystem, path: str, found: FindingList) -> None:
    try:
        data = fs.read(path)
    except FileNotFoundError:
        found.note(path, "vanished", "gone while it was checked")
        return
    count, rest = divmod(len(data), ENTRY_BYTES)
    wrong = count - sum(1 for _ in decode_append_times(data))
    if wrong or rest:
        message = (
            f"{wrong} of {count} entries do not match their CRC, {rest} bytes are no whole entry; "
            "they are passed over, and a segment without an entry counts as appended when its data "
            "file was last changed"
        )
        found.note(path, "append-times-corrupt", message)
