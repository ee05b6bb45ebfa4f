"""What an account of the cold tier found: every object in one class, in bytes and money."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from varve.object_store import ObjectInfo, PriceTable
from varve.tiering.manifest.paths import RemotePath


class ObjectClass(StrEnum):
    """What an object is there for."""

    LIVE = "live"
    """The newest manifest, what it names as readable, evidence, notes of outputs and receipts."""
    PENDING = "pending"
    """Of a copy that was announced, or of a commit that may be under way."""
    RETAINED = "retained"
    """Named by older versions that are kept, or of a segment whose deletion has started."""
    ORPHAN = "orphan"
    """Varve's by its name, but nothing names it: left over by a crash."""
    FOREIGN = "foreign"
    """Not varve's by its name; never touched."""


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
    """An object that deserves a line of its own, and why."""

    key: str
    size: int
    kind: ObjectClass
    reason: str


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that the newest manifest names and the store does not have as it says.

    For an object of another size than `expected_size`, `found_size` is its own, None without one.
    """

    key: str
    message: str
    expected_size: int | None = None
    found_size: int | None = None


@dataclass(slots=True, kw_only=True)
class PartitionAccount:
    """One partition: its account, what is wrong with it, and what was removed."""

    path: RemotePath
    manifest_version: int = 0
    account: Account = field(default_factory=Account)
    listed: list[Listed] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    swept: list[Listed] = field(default_factory=list)
    is_readable: bool = True
    """Whether the manifest could be read: where it cannot, nothing is called an orphan."""


@dataclass(slots=True, kw_only=True)
class FsckReport:
    """The whole of a cluster; `verified_bytes` were read again and matched their checksums."""

    store: str
    cluster: str
    prices: PriceTable
    partitions: list[PartitionAccount] = field(default_factory=list)
    foreign: list[ObjectInfo] = field(default_factory=list)
    of_topics: Account = field(default_factory=Account)
    """What topics have besides their partitions."""
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
        """Those that were found and are still there."""
        gone = {listed.key for listed in self.swept}
        return [
            listed
            for partition in self.partitions
            for listed in partition.listed
            if listed.kind is ObjectClass.ORPHAN and listed.key not in gone
        ]

    @property
    def is_clean(self) -> bool:
        return not (self.damage or self.orphans or self.total.objects[ObjectClass.FOREIGN])

    def cost_per_month(self, kind: ObjectClass) -> float:
        return self.prices.stored_cost_per_month(self.total.bytes[kind])
