"""Two copies of one log directory: Apache Kafka's cleaner runs over one, varve's over the other.

Layout     `<home>/ours/topic-0` and `<home>/theirs/topic-0`, each with the checkpoints of a log
           directory beside it; varve writes into both, so that they take the same appends.
Crash      every step opens and closes what it works on, so each begins with what files hold.
"""

import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import UUID

from conformance.cleaner import (
    CleanerOptions,
    KafkaCleaning,
    clean_with_kafka,
)
from conformance.cleaning_script import Round
from conformance.log_script import Append
from conformance.our_log import INTERNAL_NAMES
from conformance.shell import JavaShell
from conformance.stored_batches import StoredPartition, find_differences, read_partition
from varve.commit_log import Log, LogSettings, LogStore, Origin, StoreSettings, TopicPartition
from varve.disk import RealFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.settings import parse_settings

PARTITION: Final = TopicPartition("topic", 0)
TOPIC_ID: Final = UUID("6b616661-7661-4276-9276-766172766531")
ORIGINS: Final = {"CLIENT": Origin.CLIENT, "COORDINATOR": Origin.COORDINATOR}
# Rewrites every segment in every run, as Kafka does, and lets record timestamps rule retention.
AS_KAFKA: Final = {"min.stale.ratio": "0", "retention.time": "event"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PairSettings:
    """The topic's settings under Kafka's names, and how long a silent producer is known."""

    configs: Mapping[str, str]
    producer_expiration_ms: int = 86_400_000
    options: CleanerOptions = field(default_factory=CleanerOptions)

    def for_varve(self) -> LogSettings:
        known = {INTERNAL_NAMES.get(name, name): value for name, value in self.configs.items()}
        return parse_settings(LogSettings, {**known, **AS_KAFKA})


@contextmanager
def open_store(path: Path, settings: PairSettings, now_ms: int) -> Iterator[LogStore]:
    """The log directory as varve opens it at a moment; closed in good order behind."""
    topic = settings.for_varve()
    store = LogStore(
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
        shutil.copytree(path, self.theirs.parent)

    def append(self, steps: Round, now_ms: int) -> None:
        """Lets varve append the same to both."""
        self.append_theirs(steps, now_ms)
        with open_store(self.ours.parent, self.settings, now_ms) as store:
            take_round(store.get(PARTITION), steps)

    def append_theirs(self, steps: Round, now_ms: int) -> None:
        """Lets varve append to what Kafka cleaned."""
        with open_store(self.theirs.parent, self.settings, now_ms) as store:
            take_round(store.get(PARTITION), steps)

    def clean_theirs(self, now_ms: int) -> KafkaCleaning:
        return clean_with_kafka(
            self._kafka,
            self.theirs,
            now_ms=now_ms,
            configs=self.settings.configs,
            options=self.settings.options,
        )

    def read(self) -> tuple[StoredPartition, StoredPartition]:
        return read_partition(self.ours), read_partition(self.theirs)

    def differences(self) -> list[str]:
        """Where the files of the two sides tell different stories."""
        return find_differences(*self.read())
