"""A topic in a store and its bucket, from which records are erased, and what is left of it."""

import random
from dataclasses import dataclass, field
from typing import Any

from tests.support.log_model import split_batches
from tests.support.store_access import StoreAccess
from tests.support.tiered_topic import TieredTopic
from varve.cleaning.removals.audit import audit_partition
from varve.cleaning.removals.removal_log import REMOVAL_LOG_FILE
from varve.commit_log.check import Severity
from varve.commit_log.names import LOG
from varve.disk import FileSystem
from varve.jobs.erase.erasure import Erasure
from varve.jobs.erase.receipt_signature import SigningKey
from varve.jobs.erase.request import ErasureRequest
from varve.jobs.erase.result import ErasureResult
from varve.jobs.erase.targets import BucketTarget, DirectoryTarget, ErasureTargets
from varve.jobs.tasks import LocalRunner, TaskRunner
from varve.jobs.tier.bucket import RemoteTopic
from varve.object_store import ObjectStore
from varve.records import Codec, Record, build_batch
from varve.records.batch import Batch
from varve.tiering.manifest.paths import RemotePath
from varve.topics.outputs import DerivedOutput, OutputKind, RemoteOutputRegistry

Found = dict[int, tuple[bytes | None, bytes | None]]
"""Records by offset: key and value."""


@dataclass
class ErasureBench:
    """One topic of one partition, tiered unless told otherwise."""

    topic: TieredTopic = field(default_factory=TieredTopic)
    runner: TaskRunner = field(default_factory=LocalRunner)
    seed: int = 100

    @classmethod
    def plain(cls, **settings: Any) -> "ErasureBench":
        """A topic that is on the local disk alone."""
        return cls(TieredTopic(topic_settings={"remote.storage.enable": False, **settings}))

    @property
    def fs(self) -> FileSystem:
        return self.topic.kit.fs

    @property
    def home(self) -> RemotePath:
        return self.topic.tiered.manifests.load().path

    def put(
        self,
        *keys: str | None,
        value: str | bytes | None = "v",
        codec: Codec = Codec.NONE,
        producer_id: int = -1,
    ) -> int:
        """One batch with a record for each key; inside a transaction if it has a producer."""
        log = self.topic.log
        data = value.encode() if isinstance(value, str) else value
        records = [
            Record(None if key is None else key.encode(), data, timestamp=self.topic.kit.now_ms)
            for key in keys
        ]
        known = log.producers.entries.get(producer_id)
        sequence = -1 if producer_id < 0 else 0 if known is None else known.last_sequence + 1
        batch = build_batch(
            records,
            codec=codec,
            producer_id=producer_id,
            producer_epoch=-1 if producer_id < 0 else 0,
            base_sequence=sequence,
            transactional=producer_id >= 0,
        )
        return log.append(batch).base_offset

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.topic.log.end_transaction(
            producer_id=producer_id, producer_epoch=0, committed=committed
        )

    def roll(self) -> None:
        self.topic.log.roll()
        self.topic.kit.advance(minutes=1)

    def copy(self) -> None:
        self.topic.copy()

    # The erasure

    def places(
        self, objects: ObjectStore | None = None, *, hot: bool = True, remote: bool = True
    ) -> ErasureTargets:
        tier = None
        if remote:
            home = self.home
            self.seed += 1
            tier = BucketTarget(
                StoreAccess(objects or self.topic.bucket, random.Random(self.seed)),
                home.cluster,
                lambda name: RemoteTopic(home.cluster, home.topic, home.topic_id, (home,)),
            )
        kit = self.topic.kit
        store = DirectoryTarget(kit.store, (kit.path,), kit.fs) if hot else None
        return ErasureTargets(tier, store)

    def erase(
        self,
        *keys: str,
        objects: ObjectStore | None = None,
        hot: bool = True,
        remote: bool = True,
        is_dry_run: bool = False,
        is_finish: bool = False,
        signing_key: SigningKey | None = None,
        **request: Any,
    ) -> ErasureResult:
        """A job as a new process runs it."""
        self.seed += 1
        given: dict[str, Any] = {"id": f"request-{self.seed}", "buffer_bytes": 1 << 16, **request}
        erasure = Erasure(
            self.places(objects, hot=hot, remote=remote),
            ErasureRequest(
                topics=("orders",), keys=frozenset(one.encode() for one in keys), **given
            ),
            runner=self.runner,
            clock=self.topic.kit.clock,
            random=random.Random(-self.seed),
            signing_key=signing_key,
        )
        return erasure.run(is_dry_run=is_dry_run, is_finish=is_finish)

    def receipt(self, *keys: str, **given: Any) -> dict[str, Any]:
        """The receipt of an erasure, which must issue one."""
        receipt = self.erase(*keys, **given).receipt
        assert receipt is not None
        return receipt

    def register(self, kind: OutputKind, *, place: str, name: str) -> DerivedOutput:
        """Registers an output of the topic in the bucket."""
        output = DerivedOutput(
            kind=kind, topic="orders", topic_id=self.home.topic_id, place=place, name=name
        )
        RemoteOutputRegistry(self.topic.bucket, self.home.cluster).note(output)
        return output

    # What is there

    def hot_data(self) -> list[bytes]:
        """The local segments as their files have them."""
        self.topic.log.flush()
        return [self.fs.read(one.path(LOG))[: one.size] for one in self.topic.log.view if one.size]

    def remote_data(self) -> list[bytes]:
        """The readable log objects."""
        home = self.home
        return [
            bytes(self.topic.bucket.get(home.part_key(one, "log")))
            for one in self.topic.remote()
            if one.is_readable
        ]

    def batches(self, *, remote: bool) -> list[bytes]:
        found = self.remote_data() if remote else self.hot_data()
        return [one for data in found for one in split_batches(data)]

    def records(self, *, remote: bool) -> Found:
        """All data records of a tier, those of aborted transactions among them."""
        found: Found = {}
        for data in self.batches(remote=remote):
            batch = Batch(data)
            if not batch.header.is_control:
                for one in batch.records():
                    found[one.offset] = (one.key, one.value)
        return found

    def everything(self) -> bytes:
        """Every byte in the bucket and on the disk but evidence, which speaks of no key."""
        kept = [bytes(self.topic.bucket.get(one.key)) for one in self.topic.bucket.list("")]
        directory = self.topic.log.directory
        for name in self.fs.names(directory):
            if name != REMOVAL_LOG_FILE:
                kept.append(self.fs.read(f"{directory}/{name}"))
        return b"".join(kept)

    def check(self) -> None:
        """The log is sound, its evidence holds, and no object is left that nothing names."""
        self.topic.log.flush()
        report = audit_partition(self.fs, self.topic.log.directory, deep=True)
        assert report.is_clean, report.findings
        self.topic.kit.store.close()
        errors = [one for one in self.topic.kit.check() if one.severity is Severity.ERROR]
        assert not errors, errors
        self.topic.kit.reopen()
