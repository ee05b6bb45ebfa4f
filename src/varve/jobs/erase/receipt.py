"""The receipt of an erasure: what was asked, what was done, what was read again, what was not
reached.

Layout     docs/formats/receipt.md
Invariant  holds no key and no value, but their salted digests. What was done is read back from the
           evidence, that of an earlier run under the same id with it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from varve.cleaning.removals.audit import Outcome, find_outcome
from varve.cleaning.removals.live_segments import LiveSegments
from varve.cleaning.removals.removal import Reason, Removal, RemovalKind
from varve.cleaning.removals.removal_json import decode_removal, encode_removal
from varve.cleaning.removals.removal_log import read_removal_log
from varve.commit_log import Log
from varve.commit_log.check_partition import show_nothing
from varve.disk import FileSystem
from varve.foundation.errors import Corrupt
from varve.jobs.tier.reach import TierReach
from varve.tiering.copy.history_check import ERASURE_PREFIX
from varve.tiering.copy.segment_upload import LOG_PART
from varve.tiering.manifest.paths import RemotePath

KIND: Final = "varve erasure receipt"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class PartitionErased:
    """What became of one partition on one tier: its balances, and object by object the change."""

    partition: int
    tier: str
    balances: tuple[Removal, ...]
    objects: tuple[dict[str, Any], ...]

    @property
    def records(self) -> int:
        return sum(one.records.get(Reason.ERASED, 0) for one in self.balances)

    @property
    def bytes(self) -> int:
        return sum(one.bytes.get(Reason.ERASED, 0) for one in self.balances)

    def to_json(self) -> dict[str, object]:
        return {
            "partition": self.partition,
            "tier": self.tier,
            "segments": len(self.balances),
            "records": self.records,
            "bytes": self.bytes,
            "balances": [encode_removal(one) for one in self.balances],
            "objects": list(self.objects),
        }


def read_cold_erased(reach: TierReach, home: RemotePath, request: str) -> PartitionErased:
    """What the evidence of an erasure says of a cold partition, of all that was carried out."""
    objects, manifests = reach.objects(), reach.manifests(home)
    live = {
        home.part_key(one, LOG_PART)
        for one in manifests.segments(manifests.load())
        if one.is_readable
    }
    done: dict[str, tuple[Removal, dict[str, Any]]] = {}
    prefix = home.evidence_key(f"{ERASURE_PREFIX}{request}-").removesuffix(".json")
    for info in objects.list(prefix.rpartition("/")[0]):
        if not info.key.startswith(prefix):
            continue
        for balance, change in _decode(bytes(objects.get(info.key)), info.key):
            before = change["before"]["key"]
            known = done.get(before)
            # A run that was killed between evidence and commit left a change that never was: of
            # two that begin with the same object the one that can be read was carried out.
            is_better = known is None or known[1]["after"]["key"] not in live
            if before not in live and is_better:
                done[before] = balance, change
    balances, changes = [one for one, _ in done.values()], [one for _, one in done.values()]
    return PartitionErased(home.partition, "cold", tuple(balances), tuple(changes))


def _decode(data: bytes, key: str) -> Iterator[tuple[Removal, dict[str, Any]]]:
    try:
        document = json.loads(data)
        for number, (balance, change) in enumerate(
            zip(document["balances"], document["objects"], strict=True), 1
        ):
            for side in ("before", "after"):
                if not isinstance(change[side]["key"], str):
                    raise ValueError("an object without a key")
            yield decode_removal(number, balance), change
    except (ValueError, KeyError, TypeError) as error:
        raise Corrupt(f"{key}: is no evidence of an erasure: {error}") from error


def read_hot_erased(
    fs: FileSystem, log: Log, request: str, changes: Sequence[dict[str, Any]]
) -> PartitionErased:
    """The same of a local log; `changes` are the files of this run.

    A swap that was cut short and completed when the log was opened again is not noted as carried
    out, and counts.
    """
    entries = read_removal_log(fs, log.directory).entries
    live: LiveSegments | None = None
    balances: list[Removal] = []
    for number, entry in enumerate(entries):
        balance = entry.balance
        is_ours = balance.kind is RemovalKind.ERASURE and balance.rule.startswith(
            f"erasure {request}:"
        )
        if is_ours and not entry.is_done:
            live = live or LiveSegments(fs, log.directory, advance=show_nothing)
            outcome = find_outcome(balance, entries[number + 1 :], live)
            is_ours = outcome is Outcome.DONE_UNMARKED
        if is_ours:
            balances.append(balance)
    return PartitionErased(log.topic_partition.partition, "hot", tuple(balances), tuple(changes))
