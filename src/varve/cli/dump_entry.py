"""What a dump is made of: entries with Kafka's names for their fields, in the order of the file.

Kinds and their fields (the keys of `--json`, where every object also has `kind` and `file`):

- `file`               nothing more: what follows comes from it
- `logStart`           `offset` (from the file's name)
- `snapshotEnd`        `offset`, `epoch`; `bootstrapSnapshot` has nothing more
- `batch`              `baseOffset`, `lastOffset`, `count`, `baseSequence`, `lastSequence`,
                       `producerId`, `producerEpoch`, `partitionLeaderEpoch`, `isTransactional`,
                       `isControl`, `deleteHorizonMs` (or null), `position`, `timestampType`,
                       `maxTimestamp`, `size`, `magic`, `compression`, `crc`, `isValid`
- `record`             `offset`, `timestampType`, `timestamp`, `keySize`, `valueSize` (-1: null),
                       `sequence`, `headerKeys`; of control records `controlType`, `controlTypeId`,
                       `coordinatorEpoch` (or null); with printing `key`, `value`, `headers`
                       (pairs of name and value)
- `trailingBytes`      `size`
- `offsetIndexEntry`   `offset`, `position`
- `timeIndexEntry`     `timestamp`, `offset`
- `abortedTransaction` `version`, `producerId`, `firstOffset`, `lastOffset`, `lastStableOffset`
- `producer`           `producerId`, `producerEpoch`, `coordinatorEpoch`, `currentTxnFirstOffset`
                       (or null), `lastTimestamp`, and if a batch is known `firstSequence`,
                       `lastSequence`, `lastOffset`, `offsetDelta`, `timestamp`
- `leaderEpoch`        `epoch`, `startOffset`
- `checkpoint`         `topic`, `partition`, `offset`
- `partitionMetadata`  `version`, `topicId`
- `directoryMetadata`  `version`, `clusterId`, `nodeId`, `directoryId` (null: not given)
- `cleanShutdown`      `brokerEpoch` (or null)
- `emptyIndex`, `saneIndex`   nothing more
- `indexMismatch`      `indexOffset`, `logOffset`
- `timestampMismatch`  `indexTimestamp`, `logTimestamp`
- `timestampOutOfOrder` `indexTimestamp`, `previousTimestamp`
- `offsetNotFound`     `indexedOffset`, `logOffset` (-1: none)
- `nonConsecutive`     `offset`, `nextOffset`
- `problem`            `position` (or null), `message`: the file breaks its format here
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from varve.disk import FileSystem


class Entry(NamedTuple):
    """One line of a dump, before it is formatted."""

    kind: str
    fields: Mapping[str, object]


def problem(message: str, position: int | None = None) -> Entry:
    return Entry("problem", {"position": position, "message": message})


def show_nothing(size: int) -> None:
    """The progress of a dump nobody watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DumpOptions:
    """What is read of the files; how it is shown is the formatter's."""

    deep: bool = False
    print_data: bool = False
    max_bytes: int | None = None
    verify_index_only: bool = False
    index_sanity_check: bool = False
    advance: Callable[[int], None] = show_nothing


@dataclass(frozen=True, slots=True)
class Source:
    """A file to dump; `offset` is that of its name, 0 where the name has none."""

    fs: FileSystem
    path: str
    offset: int

    def beside(self, name: str) -> str:
        """The path of another file in the same directory."""
        directory, slash, _ = self.path.rpartition("/")
        return f"{directory}{slash}{name}"
