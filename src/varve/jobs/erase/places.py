"""Where the records of a topic are: its cold partitions, local logs, and what was made of it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from varve.commit_log import Log
from varve.commit_log.partition_metadata import encode_topic_id
from varve.disk import FileSystem
from varve.embedded import Store
from varve.foundation.errors import InvalidRequest, NotFound
from varve.jobs.erase.outputs import OutputSettings, TopicOutputs, find_outputs
from varve.jobs.outputs.notes import DirectoryOutputs, Outputs, TierOutputs
from varve.jobs.tier.address import ColdTopic
from varve.jobs.tier.reach import TierReach
from varve.tiering.manifest.paths import RemotePath

_TOPICS_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class ErasedTier:
    """The cold tier of a cluster; `find_topic` raises NotFound for one that it does not hold."""

    reach: TierReach
    cluster: str
    find_topic: Callable[[str], ColdTopic]
    url: str = ""


@dataclass(frozen=True, slots=True)
class ErasedStore:
    """A store that is open in this process, and its log directories."""

    store: Store
    directories: tuple[str, ...]
    fs: FileSystem


@dataclass(frozen=True, slots=True)
class TopicPlace:
    """Where one topic is."""

    name: str
    topic_id: str
    homes: tuple[RemotePath, ...]
    logs: tuple[Log, ...]
    outputs: TopicOutputs


@dataclass(frozen=True, slots=True)
class Places:
    """All that an erasure can reach, and what it takes to open outputs."""

    tier: ErasedTier | None
    hot: ErasedStore | None
    output_settings: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        if self.tier is None and self.hot is None:
            raise InvalidRequest("give the object store, the log directory, or both")

    def find_all(self, names: Sequence[str]) -> list[TopicPlace]:
        """These topics, and within reach those that were made of them; raises NotFound."""
        found: dict[str, TopicPlace] = {}
        waiting = list(dict.fromkeys(names))
        while waiting:
            place = self.find(waiting.pop(0))
            found[place.name] = place
            for one in place.outputs.topics:
                if one.name not in found and one.name not in waiting:
                    waiting.append(one.name)
            if len(found) + len(waiting) > _TOPICS_MAX:
                raise InvalidRequest(f"more than {_TOPICS_MAX} topics: erase them in several runs")
        return list(found.values())

    def find(self, name: str) -> TopicPlace:
        """One topic; raises NotFound."""
        cold = self._find_cold(name)
        plain = name if cold is None else cold.name
        logs, topic_id = self._find_logs(plain)
        if cold is not None and topic_id is not None and cold.topic_id != topic_id:
            raise InvalidRequest(
                f"topic {plain} has the id {topic_id} in the log directory and {cold.topic_id} in "
                "the object store: they are two topics, erase them one by one"
            )
        found = topic_id if cold is None else cold.topic_id
        if found is None:
            raise NotFound(f"topic {name!r:.260} is neither in the object store nor on the disk")
        homes = () if cold is None else cold.partitions
        urls = [self.tier.url] if self.tier is not None and self.tier.url else []
        places = [*urls, *(self.hot.directories if self.hot is not None else ())]
        outputs = find_outputs(self.books(), plain, found, places=places)
        return TopicPlace(plain, found, homes, logs, outputs)

    def _find_cold(self, name: str) -> ColdTopic | None:
        if self.tier is None:
            return None
        try:
            return self.tier.find_topic(name)
        except NotFound:
            if self.hot is None:
                raise
            return None

    def _find_logs(self, name: str) -> tuple[tuple[Log, ...], str | None]:
        """The logs of a topic in the store, and its id; none where the store has it not."""
        if self.hot is None:
            return (), None
        try:
            topic = self.hot.store.topic(name)
        except NotFound:
            return (), None
        if topic.id is None:
            raise InvalidRequest(
                f"topic {name} has no id, by which keys are hashed: open the store for writing once"
            )
        try:
            logs = tuple(one.log for one in topic.partitions)
        except NotFound as error:
            raise InvalidRequest(
                f"topic {name} has partitions that are in none of the log directories "
                f"{', '.join(self.hot.directories)} ({error}): give every directory of the store"
            ) from error
        return logs, encode_topic_id(topic.id)

    def books(self) -> Iterator[Outputs]:
        """Where outputs are noted."""
        if self.tier is not None:
            yield TierOutputs(self.tier.reach.objects(), self.tier.cluster)
        if self.hot is not None:
            for directory in self.hot.directories:
                yield DirectoryOutputs(directory, self.hot.fs)

    def object_key(self, place: TopicPlace, folder: str, id: str) -> str:
        """Where a document of an erasure of a topic in the cold tier is kept."""
        assert self.tier is not None
        return f"{self.tier.cluster}/{place.name}.{place.topic_id}/{folder}/{id}.json"
