"""The targets of an erasure: the remote partitions, local logs and outputs of its topics.

Also lists what an erasure cannot reach, for the receipt.

Invariant  every registered output is erased, or reported as out of reach. An output is removed from
           the registry only by its exact id.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, assert_never

from varve.commit_log import Log
from varve.commit_log.directory_files import encode_topic_id
from varve.commit_log.names import DirectoryState, parse_partition_directory
from varve.disk import FileSystem, RealFileSystem
from varve.embedded import Store
from varve.embedded.tier_location import TIER_FILE
from varve.embedded.topic_table import find_tiered_topics
from varve.foundation.errors import Corrupt, InvalidRequest, NotFound, Unavailable
from varve.foundation.settings import GivenValue
from varve.foundation.topic_records import list_topics
from varve.jobs.derived_outputs import ErasedOutput, ErasedRows
from varve.jobs.erase.request import ErasureRequest, RescanMode
from varve.jobs.object_versions import ErasedVersions
from varve.jobs.tasks import TaskRunner
from varve.jobs.tier.bucket import BucketAccess, RemoteTopic
from varve.object_store.opening import find_scheme, to_url
from varve.tiering.manifest.paths import RemotePath
from varve.topics.outputs import (
    DerivedOutput,
    LocalOutputRegistry,
    OutputKind,
    OutputRegistry,
    RemoteOutputRegistry,
    TopicOutputRegistry,
    find_path,
)

if TYPE_CHECKING:
    from varve.jobs.erase.kept_state import KeptStateErasure

_TOPICS_MAX: Final = 1000
"""Bounds the topics of one erasure, derived topics included."""


@dataclass(frozen=True, slots=True)
class TopicOutputs:
    """The outputs of one topic: those that are erased (`copies`), and reachable derived topics."""

    copies: tuple[DerivedOutput, ...]
    topics: tuple[DerivedOutput, ...]
    out_of_reach: tuple[str, ...]

    @property
    def rows(self) -> tuple[DerivedOutput, ...]:
        """The snapshots and tables."""
        kinds = (OutputKind.SNAPSHOT, OutputKind.TABLE)
        return tuple(output for output in self.copies if output.kind in kinds)

    @property
    def has_ids(self) -> bool:
        """Whether a deduplication remembers records by their offsets."""
        return any(output.kind is OutputKind.IDS for output in self.copies)


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """Settings for opening outputs, credentials included: the registry stores none.

    A snapshot whose URL has the scheme of `store_url` (the topic's bucket) is opened with `store`,
    overridden by `snapshots`; every other snapshot with `snapshots`.
    """

    snapshots: Mapping[str, GivenValue] = field(default_factory=dict)
    tables: Mapping[str, GivenValue] = field(default_factory=dict)
    store_url: str = ""
    store: Mapping[str, GivenValue] = field(default_factory=dict)

    def for_output(self, output: DerivedOutput) -> Mapping[str, GivenValue]:
        if output.kind is OutputKind.TABLE:
            return self.tables
        if self.store_url and _get_scheme(output.place) == _get_scheme(self.store_url):
            return {**self.store, **self.snapshots}
        return self.snapshots


def _get_scheme(location: str) -> str:
    return find_scheme(to_url(location))


def find_topic_outputs(
    registries: Iterable[OutputRegistry], topic: str, topic_id: str, *, reachable: Sequence[str]
) -> TopicOutputs:
    """Finds the registered outputs of a topic.

    `reachable` are the URL and directories whose topics the erasure can reach.
    """
    outputs: dict[str, DerivedOutput] = {}
    for registry in registries:
        for output in registry.find(topic, topic_id):
            other = outputs.get(output.id)
            outputs[output.id] = output if other is None else output.with_locations(other.locations)
    reachable_urls = set(map(to_url, reachable))
    copies, topics, out_of_reach = [], [], []
    for output in outputs.values():
        match output.kind:
            case OutputKind.SNAPSHOT | OutputKind.TABLE | OutputKind.SHAPES | OutputKind.IDS:
                copies.append(output)
            case OutputKind.TOPIC:
                if to_url(output.place) in reachable_urls:
                    topics.append(output)
                else:
                    out_of_reach.append(
                        f"topic {output.name} at {output.place} was made of {topic}: erase it there"
                    )
            case OutputKind.FILES:
                out_of_reach.append(
                    f"files at {output.place} ({output.name}) were made of {topic}: remove them by "
                    "hand"
                )
            case OutputKind.DIRECTORY:
                if find_path(output.place) not in reachable:
                    out_of_reach.append(
                        f"the log directory {output.place} was restored from the remote tier of "
                        f"{topic}: erase there with --dir, or if it was deleted, run `varve output "
                        f"forget {topic} {output.id}`"
                    )
            case OutputKind.CHECKPOINT:
                out_of_reach.append(
                    f"the checkpoint at {output.place} of {output.name} holds ids of records of "
                    f"{topic} until they leave the window of the deduplication: start it again "
                    "with another checkpoint, and delete this one"
                )
            case _:
                assert_never(output.kind)
    return TopicOutputs(tuple(copies), tuple(topics), tuple(out_of_reach))


@dataclass(frozen=True, slots=True)
class OutputErasure:
    """Erases one output.

    `siblings` are all snapshots and tables of the topic: their files are not orphans of this one.
    `kept` erases an output that a process keeps on disk.
    """

    output: DerivedOutput
    settings: OutputSettings
    runner: TaskRunner
    siblings: Sequence[DerivedOutput] = ()
    kept: "KeptStateErasure | None" = None

    def erase(self, rows: ErasedRows) -> ErasedOutput:
        """Removes the rows permanently; raises Unavailable if the output cannot be reached."""
        settings = self.settings.for_output(self.output)
        with _name_remedy(self.output):
            match self.output.kind:
                case OutputKind.SNAPSHOT:
                    from varve.jobs.snapshot.erase import erase_from_snapshot

                    return erase_from_snapshot(self.output, settings, rows, runner=self.runner)
                case OutputKind.TABLE:
                    from varve.jobs.table.erase import erase_from_table

                    return erase_from_table(
                        self.output, settings, rows, siblings=self.siblings, runner=self.runner
                    )
                case OutputKind.SHAPES:
                    return self._get_kept().erase_shapes()
                case OutputKind.IDS:
                    return self._get_kept().erase_ids(rows)
                case _:
                    raise AssertionError(f"{self.output.kind} is not erased")

    def count(self, rows: ErasedRows) -> int:
        """Counts what remains in all retained files."""
        settings = self.settings.for_output(self.output)
        match self.output.kind:
            case OutputKind.SNAPSHOT:
                from varve.jobs.snapshot.erase import count_in_snapshot

                return count_in_snapshot(self.output, settings, rows, runner=self.runner)
            case OutputKind.TABLE:
                from varve.jobs.table.erase import count_in_table

                return count_in_table(
                    self.output, settings, rows, siblings=self.siblings, runner=self.runner
                )
            case OutputKind.SHAPES:
                return self._get_kept().count_shapes()
            case OutputKind.IDS:
                return self._get_kept().count_ids(rows)
            case _:
                raise AssertionError(f"{self.output.kind} is not erased")

    def _get_kept(self) -> "KeptStateErasure":
        assert self.kept is not None, "these outputs are registered in a log directory"
        return self.kept


@contextmanager
def _name_remedy(output: DerivedOutput) -> Iterator[None]:
    """Adds the remedy to errors: a missing output makes every erasure of its topic fail."""
    try:
        yield
    except (Unavailable, NotFound) as error:
        raise Unavailable(
            f"{output.kind} {output.name} of topic {output.topic} cannot be reached: {error}. If "
            f"it no longer exists: varve output forget {output.topic} {output.id}"
        ) from error


# Topics


@dataclass(frozen=True, slots=True)
class BucketTarget:
    """The remote tier of a cluster; `find_topic` raises NotFound for an unknown topic."""

    bucket: BucketAccess
    cluster: str
    find_topic: Callable[[str], RemoteTopic]
    url: str = ""


@dataclass(frozen=True, slots=True)
class DirectoryTarget:
    """A store that is open in this process, and its log directories."""

    store: Store
    directories: tuple[str, ...]
    fs: FileSystem


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """The remote partitions, local logs and outputs of one topic."""

    name: str
    topic_id: str
    partitions: tuple[RemotePath, ...]
    logs: tuple[Log, ...]
    outputs: TopicOutputs


@dataclass(frozen=True, slots=True)
class ErasureTargets:
    """The reachable tiers, and the settings for opening outputs."""

    remote: BucketTarget | None
    local: DirectoryTarget | None
    output_settings: OutputSettings = field(default_factory=OutputSettings)

    def __post_init__(self) -> None:
        if self.remote is None and self.local is None:
            raise InvalidRequest("give the object store, the log directory, or both")

    def find_all(self, names: Sequence[str]) -> list[TopicTarget]:
        """Finds topics, and the reachable topics derived from them; raises NotFound."""
        targets: dict[str, TopicTarget] = {}
        pending = list(dict.fromkeys(names))
        while pending:
            target = self.find(pending.pop(0))
            targets[target.name] = target
            for output in target.outputs.topics:
                if output.name not in targets and output.name not in pending:
                    pending.append(output.name)
            if len(targets) + len(pending) > _TOPICS_MAX:
                raise InvalidRequest(f"more than {_TOPICS_MAX} topics: erase them in several runs")
        return list(targets.values())

    def find(self, name: str) -> TopicTarget:
        """Finds one topic; raises NotFound."""
        remote = self._find_remote(name)
        topic = name if remote is None else remote.name
        logs, local_id = self._find_logs(topic)
        if remote is not None and local_id is not None and remote.topic_id != local_id:
            raise InvalidRequest(
                f"topic {topic} has the id {local_id} in the log directory and {remote.topic_id} "
                "in the object store: they are two topics, erase them one by one"
            )
        topic_id = local_id if remote is None else remote.topic_id
        if topic_id is None:
            assert self.local is not None  # an object store alone names its topics
            known = list_topics(name, (topic.name for topic in self.local.store.topics()))
            place = " nor in the object store" if self.remote is not None else ""
            where = ", ".join(self.local.directories)
            raise NotFound(f"there is no topic {name!r:.260} in {where}{place}{known}")
        partitions = () if remote is None else remote.partitions
        urls = [self.remote.url] if self.remote is not None and self.remote.url else []
        locations = [*urls, *(self.local.directories if self.local is not None else ())]
        outputs = find_topic_outputs(self.registries(), topic, topic_id, reachable=locations)
        return TopicTarget(topic, topic_id, partitions, logs, outputs)

    def _find_remote(self, name: str) -> RemoteTopic | None:
        if self.remote is None:
            return None
        try:
            return self.remote.find_topic(name)
        except NotFound:
            if self.local is None:
                raise
            return None

    def _find_logs(self, name: str) -> tuple[tuple[Log, ...], str | None]:
        """Returns the local logs of a topic and its id; empty and None if the store lacks it."""
        if self.local is None:
            return (), None
        try:
            topic = self.local.store.topic(name)
        except NotFound:
            return (), None
        if topic.id is None:
            raise InvalidRequest(
                f"topic {name} has no id, by which keys are hashed: open the store for writing once"
            )
        try:
            logs = tuple(partition.log for partition in topic.partitions)
        except NotFound as error:
            raise InvalidRequest(
                f"topic {name} has partitions that are in none of the log directories "
                f"{', '.join(self.local.directories)} ({error}): give every directory of the store"
            ) from error
        return logs, encode_topic_id(topic.id)

    def registries(self) -> Iterator[OutputRegistry]:
        """Yields the output registries of all tiers."""
        if self.remote is not None:
            yield RemoteOutputRegistry(self.remote.bucket.objects(), self.remote.cluster)
        if self.local is not None:
            for directory in self.local.directories:
                yield LocalOutputRegistry(directory, self.local.fs)
            yield TopicOutputRegistry(self.local.store)

    def object_key(self, target: TopicTarget, folder: str, id: str) -> str:
        """The key of a receipt or request of a topic in the remote tier."""
        assert self.remote is not None
        return f"{self.remote.cluster}/{target.name}.{target.topic_id}/{folder}/{id}.json"


def check_tier_location(directories: Sequence[str], topics: Sequence[str]) -> None:
    """Raises InvalidRequest for tiered topics of directories that do not record their tier."""
    fs = RealFileSystem()
    tiered = {name for directory in directories for name in find_tiered_topics(fs, directory)}
    if tiered := tiered & set(topics):
        raise InvalidRequest(
            f"{', '.join(sorted(tiered))}: remote.storage.enable is set, and no {TIER_FILE} of the "
            "log directories has the location of the remote tier: name it with --store; if nothing "
            "was ever copied, remove the setting"
        )


def list_outputs(targets: ErasureTargets, topic: str) -> list[DerivedOutput]:
    """Lists the registered outputs of a topic by id; raises NotFound for an unknown topic."""
    registered = _find_registered(targets, topic)
    return [registered[id][0] for id in sorted(registered)]


def forget_output(targets: ErasureTargets, topic: str, id: str) -> DerivedOutput:
    """Removes an output that no longer exists from all registries; raises NotFound."""
    registered = _find_registered(targets, topic)
    if id in registered:
        output, registries = registered[id]
        for registry in registries:
            registry.forget(output)
        return output
    ids = ", ".join(registered) or "none"
    raise NotFound(f"topic {topic} has no registered output {id!r:.80} (registered: {ids:.400})")


def _find_registered(
    targets: ErasureTargets, topic: str
) -> dict[str, tuple[DerivedOutput, list[OutputRegistry]]]:
    """Returns outputs by id, with every registry that has them: each log directory has its own."""
    target = targets.find(topic)
    registered: dict[str, tuple[DerivedOutput, list[OutputRegistry]]] = {}
    for registry in targets.registries():
        for output in registry.find(target.name, target.topic_id):
            registered.setdefault(output.id, (output, []))[1].append(registry)
    return registered


# Out of reach


def list_unreached(
    targets: ErasureTargets,
    topics: Sequence[TopicTarget],
    request: ErasureRequest,
    *,
    unread: int,
    outputs: Sequence[ErasedOutput],
    is_versioned: bool,
    versions: ErasedVersions,
) -> list[str]:
    """Lists what the erasure cannot reach, specific sentences first, without duplicates."""
    sentences = [
        *(sentence for output in outputs for sentence in output.out_of_reach),
        *(sentence for topic in topics for sentence in topic.outputs.out_of_reach),
        *_list_request_limits(
            request, unread, has_outputs=any(topic.outputs.rows for topic in topics)
        ),
        *_list_unreached_copies(targets, topics),
        *_list_versions(targets, versions, is_versioned=is_versioned),
        "Temporary files of jobs that were killed on other machines: the next job there that "
        "rewrites or verifies segments removes them.",
        "Batches that killed writes from Spark left at a stagingUrl of their own: the next write "
        "of the sink removes them.",
        "Consumers, and what they made of records that they had read before; checkpoints of "
        "streaming queries among it.",
    ]
    return list(dict.fromkeys(sentences))


def _list_request_limits(request: ErasureRequest, unread: int, *, has_outputs: bool) -> list[str]:
    sentences = []
    if request.field is not None:
        sentences.append("Headers of records: a field is looked for in keys and values alone.")
        if unread:
            sentences.append(f"{unread} values that could not be read as JSON.")
        if has_outputs:
            sentences.append(
                "Rows of snapshots and tables whose records had left the log before: without a key "
                "these are found by their offsets alone."
            )
    if request.rescan is RescanMode.KEYS:
        sentences.append(
            "Data of live segments was not read again where their key indexes rule the keys out."
        )
    return sentences


def _list_unreached_copies(targets: ErasureTargets, topics: Sequence[TopicTarget]) -> list[str]:
    sentences = []
    if targets.local is None:
        sentences.append(
            "Log directories of servers: none was given. A segment that is copied later may bring "
            "records back, and outputs made before the topic was tiered, shapes and ids of "
            "deduplications are registered only in the log directory; erase there as well."
        )
    else:
        sentences.append("Backups and file system snapshots of the log directories.")
        sentences += _list_leftovers(targets.local)
        missing = [topic.name for topic in topics if not topic.logs]
        if missing:
            sentences.append(
                f"Local logs of {', '.join(missing)}: the log directory has none of them."
            )
    if targets.remote is None:
        sentences.append("Object storage: none was given.")
    else:
        sentences.append(
            "Mirrors, replicas and backups of the bucket that this store does not know of."
        )
    return sentences


def _list_leftovers(local: DirectoryTarget) -> list[str]:
    """Lists deleted logs, quarantined and staged files, which belong to no topic."""
    sentences = []
    for directory in local.directories:
        folders = [name for name in local.fs.names(directory) if _is_inactive(name)]
        if folders:
            sentences.append(
                f"{directory}: {', '.join(folders)}, which are no longer logs of a topic."
            )
        leftovers = (f"{os.path.dirname(directory)}/varve-quarantine", f"{directory}.staging")
        for path in leftovers:
            if local.fs.exists(path) and _holds_files(local.fs, path):
                sentences.append(f"{path}: files left by a repair or an interrupted write.")
    return sentences


def _is_inactive(name: str) -> bool:
    """Whether a name is that of a deleted, future or stray partition directory."""
    try:
        return parse_partition_directory(name).state is not DirectoryState.ACTIVE
    except Corrupt:
        return False


def _holds_files(fs: FileSystem, directory: str) -> bool:
    return any(
        not entry.is_directory or _holds_files(fs, f"{directory}/{entry.name}")
        for entry in fs.scan(directory)
    )


def _list_versions(
    targets: ErasureTargets, versions: ErasedVersions, *, is_versioned: bool
) -> list[str]:
    """Lists the object versions that the bucket keeps and that could not be deleted."""
    sentences = list(versions.out_of_reach)
    if targets.remote is None or versions.is_listed:
        return sentences
    if is_versioned:
        return [
            *sentences,
            "The bucket keeps versions: those of the deleted objects are named above. Delete them "
            "there, or let a lifecycle rule of the bucket delete them.",
        ]
    return [
        *sentences,
        "Versions that the bucket keeps of deleted objects, where versioning or a retention lock "
        "is on: a lifecycle rule of the bucket deletes them.",
    ]
