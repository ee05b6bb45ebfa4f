"""The topic __remote_log_metadata in a directory of its own, and a partition's manifest in it."""

import random
from dataclasses import dataclass, field
from uuid import UUID

from tests.support.log_bench import split_batches
from tests.support.remote_builder import make_segment as make_plain
from varve.commit_log import LoadRequest, Log, LogSettings, SegmentFiles, TopicPartition
from varve.disk import FileSystem
from varve.disk.memory import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.settings import LONG_MAX
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.paths import RemotePath
from varve.tiering.manifest.segment import RemoteSegment, SegmentState
from varve.tiering.metadata.events import Event, decode_event
from varve.tiering.metadata.topic import COMMIT_BYTES_MAX, MetadataTopic
from varve.tiering.metadata.topic_manifest_store import TopicManifestStore
from varve.wire.messages.state_records import METADATA_TOPIC

NOW_MS = 1_700_000_000_000
SETTINGS = LogSettings(
    retention_ms=-1,
    max_message_bytes=COMMIT_BYTES_MAX,
    message_timestamp_after_max_ms=LONG_MAX,
)


def make_id(name: object) -> str:
    """A segment's id that is the same for the same name."""
    return str(UUID(bytes=random.Random(str(name)).randbytes(16), version=4))


def make_segment(
    number: int, state: SegmentState = SegmentState.COPY_STARTED, id: object = None
) -> RemoteSegment:
    """A segment as those of `remote_builder`, under an id that the topic can hold."""
    return make_plain(number, state, make_id(number if id is None else id))


@dataclass
class MetadataBench:
    """The logs of the topic; `partition_count` is small, so that partitions share one."""

    fs: FileSystem = field(default_factory=lambda: MemoryFileSystem(ManualClock(NOW_MS)))
    partition_count: int = 3
    custom_bytes_max: int = 128
    settings: LogSettings = SETTINGS
    logs: dict[int, Log] = field(default_factory=dict)
    objects: MemoryObjectStore = field(default_factory=MemoryObjectStore)
    topic: MetadataTopic = field(init=False)

    def __post_init__(self) -> None:
        self.reopen()

    def get(self, partition: TopicPartition) -> Log:
        return self.open_log(partition.partition)

    def open_log(self, number: int) -> Log:
        if number not in self.logs:
            directory = f"data/{METADATA_TOPIC}-{number}"
            self.fs.make_directory(directory)
            for made_in in (".", "data"):
                self.fs.sync_directory(made_in)
            self.logs[number] = Log.open(
                LoadRequest(
                    files=SegmentFiles(self.fs),
                    directory=directory,
                    topic_partition=TopicPartition(METADATA_TOPIC, number),
                    settings=self.settings,
                    clock=ManualClock(NOW_MS),
                    random=random.Random(number),
                )
            )
        return self.logs[number]

    def reopen(self) -> "MetadataBench":
        """As another process finds it: nothing that was read is known any more."""
        for log in self.logs.values():
            log.abandon()
        self.logs = {}
        self.topic = MetadataTopic(
            self,  # type: ignore[arg-type]  # of a LogManager it needs `get` alone
            partition_count=self.partition_count,
            broker_id=7,
            custom_bytes_max=self.custom_bytes_max,
        )
        return self

    def store(self, home: RemotePath) -> TopicManifestStore:
        return TopicManifestStore(self.topic, self.objects, home)

    def values(self) -> list[bytes]:
        """The values of all records, partition by partition of the topic."""
        found = []
        for number in range(self.partition_count):
            log, offset = self.open_log(number), 0
            while offset < log.end_offset:
                fetched = log.read(start_offset=offset)
                for batch in split_batches(fetched.data):
                    found += [one.value or b"" for one in batch.records()]
                offset = fetched.next_offset
        return found

    def events(self) -> list[Event]:
        decoded = (decode_event(value, "event") for value in self.values())
        return [event for event in decoded if event is not None]
