"""The report of fsck on the remote tier: every object in one class, with bytes and cost."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from varve.object_store import ObjectInfo, PriceTable
from varve.tiering.manifest.paths import RemotePath


class ObjectClass(StrEnum):
    """Why an object exists."""

    LIVE = "live"
    """The newest manifest, its readable segments, evidence, records of outputs, receipts."""
    PENDING = "pending"
    """Belongs to an announced copy, or to a commit that may be in progress."""
    RETAINED = "retained"
    """Referenced by retained older versions, or part of a segment whose deletion has started."""
    ORPHAN = "orphan"
    """Has a key of varve's layout, but no manifest refers to it: left by a crash."""
    FOREIGN = "foreign"
    """Has a key outside of varve's layout; never touched."""


@dataclass(frozen=True, slots=True)
class Account:
    """Objects and bytes by class."""

    objects: Counter[ObjectClass] = field(default_factory=Counter)
    bytes: Counter[ObjectClass] = field(default_factory=Counter)

    def add(self, kind: ObjectClass, size: int) -> None:
        self.objects[kind] += 1
        self.bytes[kind] += size

    def include(self, other: "Account") -> None:
        self.objects.update(other.objects)
        self.bytes.update(other.bytes)


@dataclass(frozen=True, slots=True)
class Listed:
    """An object that is reported individually, with the reason."""

    key: str
    size: int
    kind: ObjectClass
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing, or differs from its description in the newest manifest.

    For a wrong size, `found_size` is the actual size, None if the object is missing.
    """

    key: str
    message: str
    expected_size: int | None = None
    found_size: int | None = None


@dataclass(slots=True, kw_only=True)
class PartitionAccount:
    """One partition: its account, its damage, and the removed objects."""

    path: RemotePath
    manifest_version: int = 0
    account: Account = field(default_factory=Account)
    listed: list[Listed] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    swept: list[Listed] = field(default_factory=list)
    is_readable: bool = True
    """Whether the manifest could be read; without it no object counts as an orphan."""


@dataclass(slots=True, kw_only=True)
class FsckReport:
    """The report of a cluster; `verified_bytes` were read and matched their checksums."""

    store: str
    cluster: str
    prices: PriceTable
    partitions: list[PartitionAccount] = field(default_factory=list)
    foreign: list[ObjectInfo] = field(default_factory=list)
    of_topics: Account = field(default_factory=Account)
    """Objects of topics outside of their partitions."""
    verified_bytes: int = 0

    @property
    def total(self) -> Account:
        total = Account()
        for partition in self.partitions:
            total.include(partition.account)
        total.include(self.of_topics)
        for entry in self.foreign:
            total.add(ObjectClass.FOREIGN, entry.size)
        return total

    @property
    def damage(self) -> list[Damage]:
        return [damage for partition in self.partitions for damage in partition.damage]

    @property
    def swept(self) -> list[Listed]:
        return [listed for partition in self.partitions for listed in partition.swept]

    @property
    def orphans(self) -> list[Listed]:
        """The orphans that were not swept."""
        swept_keys = {listed.key for listed in self.swept}
        return [
            listed
            for partition in self.partitions
            for listed in partition.listed
            if listed.kind is ObjectClass.ORPHAN and listed.key not in swept_keys
        ]

    @property
    def is_clean(self) -> bool:
        return not (self.damage or self.orphans or self.total.objects[ObjectClass.FOREIGN])

    def cost_per_month(self, kind: ObjectClass) -> float:
        return self.prices.stored_cost_per_month(self.total.bytes[kind])
