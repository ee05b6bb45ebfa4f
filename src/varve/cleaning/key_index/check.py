"""The part of `varve check` that reads key indexes.

Threads    the directory is not locked; a store may have it open.
"""

import contextlib
from collections.abc import Iterator
from typing import Final

from varve.cleaning.key_index.key_index import NO_TOPIC_ID, REMEDY, open_key_index
from varve.commit_log.check import Finding, Severity
from varve.commit_log.check.directory import DirectoryFacts
from varve.commit_log.check.partition import PartitionFacts
from varve.commit_log.names import KEYS
from varve.commit_log.segment import Segment, SegmentFiles
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt

_NEXT_USE: Final = "rebuilt at the next use"


def check_key_indexes(fs: FileSystem, facts: DirectoryFacts) -> list[Finding]:
    """Findings about key indexes; a segment without one is not a finding."""
    return [
        finding
        for partition_facts in facts.partitions.values()
        for finding in _check_partition(fs, partition_facts)
    ]


def _check_partition(fs: FileSystem, facts: PartitionFacts) -> Iterator[Finding]:
    topic_id = NO_TOPIC_ID if facts.topic_id is None else facts.topic_id.bytes
    files = SegmentFiles(fs)
    for info in facts.segments:
        segment = Segment(files, facts.directory, base_offset=info.base_offset, size=info.size)
        path = segment.path(KEYS)
        # The directory is not locked: an index that vanishes was replaced with its segment.
        with contextlib.suppress(FileNotFoundError):
            if not fs.info(path).is_directory:
                yield from _check_index(fs, segment, path, topic_id)


def _check_index(fs: FileSystem, segment: Segment, path: str, topic_id: bytes) -> Iterator[Finding]:
    try:
        index = open_key_index(fs, segment, topic_id=topic_id)
        if index is None:
            message = f"built from another generation of the data file; {_NEXT_USE}"
            yield Finding(Severity.NOTE, path, None, "key-index-stale", message)
            return
        with index:
            index.verify()
    except Corrupt as error:
        text = str(error).removeprefix(f"{path}: ").removesuffix(f": {REMEDY}")
        message = f"{text}; {_NEXT_USE}"
        yield Finding(Severity.NOTE, path, None, "key-index-corrupt", message)
