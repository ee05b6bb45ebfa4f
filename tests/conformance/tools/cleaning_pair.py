"""Two copies of one log directory: Apache Kafka's cleaner runs over one, varve's over the other.

Layout     `<home>/ours/topic-0` and `<home>/theirs/topic-0`, each with the checkpoints of a log
           directory beside it; varve writes into both, so that they take the same appends.
Crash      every step opens and closes what it works on, so each begins with what files hold.
"""

import os
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from tests.conformance.tools.cleaner import (
    CleanerOptions,
    KafkaCleaning,
    KafkaExpiry,
    clean_with_kafka,
    expire_with_kafka,
)
from tests.conformance.tools.cleaning_script import Round
from tests.conformance.tools.log_script import Append
from tests.conformance.tools.our_log import INTERNAL_NAMES
from tests.conformance.tools.shell import JavaShell
from tests.conformance.tools.stored_batches import StoredPartition, find_differences, read_partition
from varve.cleaning.compaction.log_cleaner import LogCleaner
from varve.cleaning.metrics import CleanReport
from varve.cleaning.removals.removal_log import RemovalLog
from varve.cleaning.retention.retention import LogRetention, RetentionPlan
from varve.cleaning.settings import CleanerSettings
from varve.commit_log import (
    AppendOrigin,
    Log,
    LogManager,
    LogSettings,
    StoreSettings,
    TopicPartition,
)
from varve.commit_log.check import Finding, PartitionContext, Severity, inspect_directory
from varve.commit_log.names import LOG
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.settings import parse_settings

PARTITION: Final = TopicPartition("topic", 0)
TOPIC_ID: Final = UUID("6b616661-7661-4276-9276-766172766531")
ORIGINS: Final = {"CLIENT": AppendOrigin.CLIENT, "COORDINATOR": AppendOrigin.COORDINATOR}
# Rewrites every segment in every run, as Kafka does, and lets record timestamps rule retention.
AS_KAFKA: Final = {"min.stale.ratio": "0", "retention.time": "event"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """The topic's settings under Kafka's names, and how each cleaner is set up.

    `own` are varve's settings that Kafka does not know. `producer_expiration_ms` is how long a
    silent producer is known.
    """

    configs: Mapping[str, str]
    own: Mapping[str, str] = field(default_factory=lambda: AS_KAFKA)
    producer_expiration_ms: int = 86_400_000
    options: CleanerOptions = field(default_factory=CleanerOptions)
    cleaner: CleanerSettings = field(default_factory=CleanerSettings)

    def for_varve(self) -> LogSettings:
        known = {INTERNAL_NAMES.get(name, name): value for name, value in self.configs.items()}
        return parse_settings(LogSettings, {**known, **self.own})


@contextmanager
def open_store(path: Path, settings: PairSettings, now_ms: int) -> Iterator[LogManager]:
    """The log directory as varve opens it at a moment; closed in good order behind."""
    topic = settings.for_varve()
    store = LogManager(
        [str(path)],
        fs=RealFileSystem(),
        clock=ManualClock(now_ms),
        random=random.Random(0),
        settings=StoreSettings(producer_id_expiration_ms=settings.producer_expiration_ms),
        topic_settings=lambda name: topic,
    )
    with store as opened:
        yield opened


def take_round(log: Log, steps: Round) -> None:
    """Appends and rolls in their order."""
    for step in steps:
        if isinstance(step, Append):
            log.append(step.batch, origin=ORIGINS[step.origin], leader_epoch=step.leader_epoch)
        else:
            log.roll()


def clean_with_varve(path: Path, settings: PairSettings, now_ms: int) -> CleanReport:
    """Opens a log directory at a moment, cleans its partition once, and closes it."""
    with open_store(path, settings, now_ms) as store:
        cleaner = LogCleaner(store, clock=ManualClock(now_ms), settings=settings.cleaner)
        return cleaner.clean(PARTITION, now_ms)


def check_directory(path: Path, now_ms: int) -> list[Finding]:
    """All but mere notes that `varve check --deep` has to say about a closed log directory."""
    context = PartitionContext(now_ms=now_ms, deep=True)
    findings = inspect_directory(RealFileSystem(), str(path), context).findings
    return [finding for finding in findings if finding.severity is not Severity.NOTE]


def _date_files(partition: Path, now_ms: int) -> None:
    """Gives data files just written the time of the test's clock, which lies in the past.

    Kafka takes the modification time of a segment without timestamps for its age.
    """
    for path in partition.glob(f"*{LOG}"):
        if path.stat().st_mtime_ns > now_ms * 1_000_000:
            os.utime(path, ns=(now_ms * 1_000_000, now_ms * 1_000_000))


class CleaningPair:
    """Both directories, from their first append on."""

    def __init__(self, kafka: JavaShell, home: Path, settings: PairSettings) -> None:
        self._kafka = kafka
        self.settings = settings
        self.ours = home / "ours" / str(PARTITION)
        self.theirs = home / "theirs" / str(PARTITION)

    def begin(self, steps: Round, now_ms: int, settings: PairSettings | None = None) -> None:
        """Writes the first round, perhaps under other settings, and copies the directory."""
        path = self.ours.parent
        path.mkdir(parents=True)
        with open_store(path, settings or self.settings, now_ms) as store:
            take_round(store.create(PARTITION, TOPIC_ID), steps)
        _date_files(self.ours, now_ms)
        shutil.copytree(path, self.theirs.parent)

    def append(self, steps: Round, now_ms: int) -> None:
        """Lets varve append the same to both."""
        self.append_theirs(steps, now_ms)
        self._append(self.ours, steps, now_ms)

    def append_theirs(self, steps: Round, now_ms: int) -> None:
        """Lets varve append to what Kafka cleaned."""
        self._append(self.theirs, steps, now_ms)

    def _append(self, partition: Path, steps: Round, now_ms: int) -> None:
        with open_store(partition.parent, self.settings, now_ms) as store:
            take_round(store.get(PARTITION), steps)
        _date_files(partition, now_ms)

    def clean(self, now_ms: int) -> tuple[CleanReport, KafkaCleaning]:
        """Cleans each directory once with its own cleaner."""
        theirs = self.clean_theirs(now_ms)
        return self.clean_ours(now_ms), theirs

    def clean_ours(self, now_ms: int) -> CleanReport:
        return clean_with_varve(self.ours.parent, self.settings, now_ms)

    def clean_ours_with_kafka(self, now_ms: int) -> KafkaCleaning:
        """Lets Kafka's cleaner run over what varve's has cleaned so far."""
        return self._clean_with_kafka(self.ours, now_ms)

    def clean_theirs(self, now_ms: int) -> KafkaCleaning:
        return self._clean_with_kafka(self.theirs, now_ms)

    def _clean_with_kafka(self, partition: Path, now_ms: int) -> KafkaCleaning:
        return clean_with_kafka(
            self._kafka,
            partition,
            now_ms=now_ms,
            configs=self.settings.configs,
            options=self.settings.options,
        )

    def raise_log_start(self, offset: int, now_ms: int) -> None:
        """Lets varve delete the records before an offset on both sides."""
        for partition in (self.ours, self.theirs):
            with open_store(partition.parent, self.settings, now_ms) as store:
                store.get(PARTITION).delete_records(offset)

    def expire(self, now_ms: int) -> tuple[RetentionPlan, KafkaExpiry]:
        """Lets each side's retention look at its directory once."""
        theirs = expire_with_kafka(
            self._kafka, self.theirs, now_ms=now_ms, configs=self.settings.configs
        )
        with open_store(self.ours.parent, self.settings, now_ms) as store:
            evidence = RemovalLog(RealFileSystem(), str(self.ours))
            ours = LogRetention(store.get(PARTITION), evidence).expire(now_ms)
        return ours, theirs

    def offsets(self, now_ms: int) -> tuple[int, int]:
        """Where the log that varve works on begins and ends."""
        with open_store(self.ours.parent, self.settings, now_ms) as store:
            log = store.get(PARTITION)
            return log.log_start_offset, log.end_offset

    def read(self) -> tuple[StoredPartition, StoredPartition]:
        return read_partition(self.ours), read_partition(self.theirs)

    def differences(self, *, same_segments: bool = True, from_offset: int = 0) -> list[str]:
        """Where the files of the two sides tell different stories, from the log start on."""
        ours, theirs = (side.from_offset(from_offset) for side in self.read())
        return find_differences(ours, theirs, same_segments=same_segments)
