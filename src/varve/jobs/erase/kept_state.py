"""Erases what servers of shapes and deduplications keep on disk: shapes, ids and changelogs.

Both are derived again from the log at the next start, so whole shapes and directories of ids are
removed. Only the changelog of a deduplication is not derived: its entries are erased one by one.

Invariant  what another process or another machine keeps is reported as out of reach, with what
           finishes the work. They see the erasure in `varve.erasure.last`, and erase it then.
Threads    one; the store is open in this process.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from varve.commit_log import Log
from varve.commit_log.directory_files import decode_topic_id, encode_topic_id
from varve.dedup.directories import (
    list_partitions,
    remove_partition,
    remove_state,
    state_root,
)
from varve.dedup.erasing import ErasedEntries, fold_keys
from varve.dedup.progress import find_progress
from varve.dedup.rules import IdKind, parse_id_source
from varve.disk import FileSystem, to_store_error
from varve.embedded import Store
from varve.foundation.clock import Clock
from varve.foundation.errors import Locked, NotFound
from varve.jobs.derived_outputs import ErasedOutput, ErasedRows
from varve.jobs.erase.local import LocalErasure
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.scan import Mask, Matcher
from varve.jobs.source.record_blocks import RecordBlock
from varve.records import RecordColumns
from varve.topics import StoreCluster
from varve.topics.outputs import DerivedOutput, find_path

_NO_HASHES: Final = np.empty((0, 2), np.uint64)
_EXPIRY: Final = "retention deletes them when they leave the window of the deduplication"
_NO_SECRET: Final = (0, 0)
"""Of a partition whose first chunk was never committed; short ids do not depend on it."""


@dataclass(frozen=True, slots=True)
class EntryMatcher(Matcher):
    """Selects changelog entries of one partition."""

    entries: ErasedEntries | None = None

    @property
    def is_by_key(self) -> bool:
        return False

    def find(self, block: RecordBlock) -> tuple[Mask, int]:
        assert self.entries is not None
        return self.entries.find(RecordColumns(block.payload, block.records)), 0


@dataclass(frozen=True, slots=True)
class KeptStateErasure:
    """Erases one output of the kinds `shapes` and `ids`."""

    output: DerivedOutput
    store: Store
    request: ErasureRequest
    fs: FileSystem
    clock: Clock

    # Shapes

    def erase_shapes(self) -> ErasedOutput:
        from varve.shapes.erasing import erase_shapes

        output = self.output
        path = find_path(output.place)
        where = f"shapes of {output.topic} in {path or output.place}"
        finish = (
            "the server of shapes drops them within half a minute when it reads the topic after "
            "this erasure, or when `varve shape serve --data` starts with the directory"
        )
        if path is None:
            return self._out_of_reach(f"{where}, on another machine: {finish}")
        try:
            removed = erase_shapes(path, output.topic, fs=self.fs, clock=self.clock)
        except NotFound:
            return self._out_of_reach(f"{where}: {self._name_missing()}")
        except Locked:
            return self._out_of_reach(
                f"{where}, which another process has open: {finish}; to remove them now, stop it "
                "and erase again"
            )
        return self._erased(
            rows=0,
            removed=removed,
            out_of_reach=[
                "Responses with shapes that browsers and caches in front of the server keep, for "
                "up to the time in their Cache-Control header: purge the caches."
            ],
        )

    def count_shapes(self) -> int:
        from varve.shapes.erasing import count_shapes

        path = find_path(self.output.place)
        assert path is not None, "what was not erased is not counted"
        return count_shapes(path, self.output.topic, fs=self.fs, clock=self.clock)

    # Ids

    def erase_ids(self, rows: ErasedRows) -> ErasedOutput:
        sentences: list[str] = []
        count, how = 0, dict(self.output.how)
        for erasure in self._changelog(rows):
            findings = erasure.search()
            count += findings.figures.records
            if findings.matched:
                erasure.rewrite(findings.matched)
        if self._is_tiered(how["changelog"]):
            sentences.append(f"ids in remote segments of topic {how['changelog']}: {_EXPIRY}")
        if parse_id_source(how["by"]).kind is not IdKind.KEY:
            sentences.append(
                f"ids that topic {how['changelog']} keeps of records that had left topic "
                f"{self.output.topic} before: {_EXPIRY}"
            )
        removed = self._remove_directories(sentences)
        return self._erased(rows=count, removed=removed, out_of_reach=sentences)

    def count_ids(self, rows: ErasedRows) -> int:
        return sum(erasure.search().figures.records for erasure in self._changelog(rows))

    def _changelog(self, rows: ErasedRows) -> Iterator[LocalErasure]:
        """The erasure of each local partition of the changelog that has entries."""
        how = dict(self.output.how)
        logs, topic_id = self._find_logs(how["changelog"])
        progress = StoreCluster(self.store).reader(how["progress"])
        for log in logs:
            partition = log.topic_partition.partition
            where = str(log.topic_partition)
            ids = set()
            if parse_id_source(how["by"]).kind is IdKind.KEY:
                found = find_progress(progress, partition)
                ids = fold_keys(rows.keys, _NO_SECRET if found is None else found.secret_words)
            offsets = rows.offsets.get(partition, np.empty(0, np.int64))
            matcher = EntryMatcher(topic_id, _NO_HASHES, entries=ErasedEntries(offsets, ids, where))
            yield LocalErasure(log, matcher, self.request, fs=self.fs, clock=self.clock)

    def _find_logs(self, topic: str) -> tuple[tuple[Log, ...], str]:
        try:
            found = self.store.topic(topic)
        except NotFound:
            return (), ""
        assert found.id is not None, "a topic that a deduplication created has an id"
        return tuple(partition.log for partition in found.partitions), encode_topic_id(found.id)

    def _is_tiered(self, topic: str) -> bool:
        try:
            return self.store.topic(topic).settings.remote_storage_enable
        except NotFound:
            return False

    def _remove_directories(self, sentences: list[str]) -> list[str]:
        """Removes the ids of all partitions; they are restored from the changelog."""
        output, path = self.output, find_path(self.output.place)
        where = f"ids of the deduplication {output.name} in {path or output.place}"
        finish = "its next start restores them without those that were erased"
        if path is None:
            sentences.append(
                f"{where}, on another machine: {finish}; to remove them now, stop it there and "
                f"delete the directory"
            )
            return []
        if not self.fs.exists(path):
            sentences.append(f"{where}: {self._name_missing()}")
            return []
        removed = []
        for directory in list_partitions(self.fs, path):
            try:
                remove_partition(self.fs, directory)
            except Locked:
                sentences.append(
                    f"{where}, which another process has open: it restores them within half a "
                    "minute after this erasure without those that were erased; to remove them now, "
                    "stop it and erase again"
                )
                continue
            except OSError as error:
                raise to_store_error(error, f"removal of {where}", path=directory) from error
            removed.append(directory)
        return removed

    # Results

    def _name_missing(self) -> str:
        output = self.output
        return (
            "the directory is not there; if it is on a disk that is not mounted, mount it and "
            "erase again, and if it was deleted, run `varve output forget "
            f"{output.topic} {output.id}`"
        )

    def _out_of_reach(self, sentence: str) -> ErasedOutput:
        return self._erased(rows=0, removed=(), out_of_reach=[sentence], is_there=False)

    def _erased(
        self,
        *,
        rows: int,
        removed: Sequence[str],
        out_of_reach: Sequence[str],
        is_there: bool = True,
    ) -> ErasedOutput:
        return ErasedOutput(
            output_id=self.output.id,
            rows=rows,
            files_before=(),
            files_after=(),
            removed=tuple(map(os.path.normpath, removed)),
            out_of_reach=tuple(dict.fromkeys(out_of_reach)),
            is_there=is_there,
        )


def remove_served_ids(
    fs: FileSystem, directories: Sequence[str], topic_id: str, partitions: Sequence[int]
) -> None:
    """Removes the ids of a topic with `varve.dedup.by`; the server restores them from the log."""
    for directory in directories:
        for number in partitions:
            name = f"{decode_topic_id(topic_id)}-{number}"
            remove_state(fs, f"{state_root(directory)}/{name}")
