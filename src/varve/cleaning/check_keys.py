"""What is wrong with the key indexes of closed segments on the local disk.

Invariant  reads only. Whatever is wrong with a key index is a note: it is made of the data file
           and is built again at its next use.
"""

import contextlib
from collections.abc import Iterator

from varve.cleaning.cleaner import NO_TOPIC_ID
from varve.cleaning.key_index import REMEDY, open_key_index
from varve.commit_log.check import Finding, Severity
from varve.commit_log.check_directory import DirectoryFacts
from varve.commit_log.check_partition import PartitionFacts
from varve.commit_log.names import KEYS
from varve.commit_log.segment import Segment
from varve.commit_log.segment_files import SegmentFiles
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt

_NEXT_USE = "built again at the next use"


def check_keys(fs: FileSystem, facts: DirectoryFacts) -> list[Finding]:
    """What is wrong with the key indexes there are; a segment without one is as it may be."""
    return [found for one in facts.partitions.values() for found in _check_partition(fs, one)]


def _check_partition(fs: FileSystem, facts: PartitionFacts) -> Iterator[Finding]:
    topic_id = NO_TOPIC_ID if facts.topic_id is None else facts.topic_id.bytes
    files = SegmentFiles(fs)
    for known in facts.segments:
        segment = Segment(files, facts.directory, base_offset=known.base_offset, size=known.size)
        path = segment.path(KEYS)
        # One that vanishes while nothing is locked was replaced together with its segment.
        with contextlib.suppress(FileNotFoundError):
            if not fs.info(path).is_directory:
                yield from _check_index(fs, segment, path, topic_id)


def _check_index(fs: FileSystem, segment: Segment, path: str, topic_id: bytes) -> Iterator[Finding]:
    try:
        index = open_key_index(fs, segment, topic_id=topic_id)
        if index is None:
            message = f"made of another generation of the data file; {_NEXT_USE}"
            yield Finding(Severity.NOTE, path, None, "key-index-stale", message)
            return
        with index:
            index.verify()
    except Corrupt as error:
        text = str(error).removeprefix(f"{path}: ").removesuffix(f": {REMEDY}")
        message = f"{text}; {_NEXT_USE}"
        yield Finding(Severity.NOTE, path, None, "key-index-corrupt", message)
