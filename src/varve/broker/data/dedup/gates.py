"""The gates of all partitions that take no duplicates: opened, waited for, ended with their topics.

A batch whose gate is not open yet waits for it, as long as its request may. Gates that fail are
opened again, for as long as it takes, and are told of meanwhile.

Invariant  what comes for one partition goes through its gate in the order in which it came.
           What is on disk of a partition that has no gate any more is removed.
Threads    the loop's. Gates are opened and closed in the pool, a few at a time, and do their work
           in the thread of `appends`.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from varve.broker.appends import AppendPart, Appends
from varve.broker.data.dedup.gate_place import GatePlace
from varve.broker.data.dedup.state_directory import (
    remove_state,
    state_directory,
    state_name,
    state_root,
    sweep,
)
from varve.broker.data.dedup.topic_rules import find_rules
from varve.broker.offload import Offload
from varve.broker.timers import Timer, Timers
from varve.broker.topics import ServedTopic, Topics
from varve.commit_log import Log, TopicPartition
from varve.dedup.rules import DedupRules
from varve.foundation.errors import Closed, StoreError

if TYPE_CHECKING:
    from varve.broker.data.dedup.gate import Gate

logger = logging.getLogger(__name__)

_OPENED_AT_ONCE: Final = 2
_RETRY_MS: Final = 1_000
_CHECKPOINT_MS: Final = 60_000


@dataclass(slots=True)
class GatedPart(AppendPart):
    """A batch for a log with a gate."""

    gate: "Gate | None" = None


@dataclass(slots=True, eq=False)
class _Waiting:
    part: GatedPart
    call: Callable[[], None]
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    """A partition with a gate, which is made when it is first opened."""

    log: Log
    rules: DedupRules
    directory: str
    gate: "Gate | None" = None
    is_ready: bool = False
    is_ended: bool = False
    error: str | None = None
    opening: "asyncio.Task[None] | None" = None
    waiting: deque[_Waiting] = field(default_factory=deque)


class Gates:
    """Of one broker."""

    def __init__(
        self,
        topics: Topics,
        appends: Appends,
        place: GatePlace,
        *,
        log_directories: list[str],
        loop: asyncio.AbstractEventLoop,
        timers: Timers,
        offload: Offload,
    ) -> None:
        appends.take = take
        self._topics = topics
        self._appends = appends
        self._place = place
        self._roots = [state_root(one) for one in log_directories]
        self._loop = loop
        self._timers = timers
        self._offload = offload
        self._entries: dict[TopicPartition, _Entry] = {}
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._turns = asyncio.Semaphore(_OPENED_AT_ONCE)
        self._past_counts: Counter[tuple[str, str]] = Counter()
        """Of gates that have ended, by topic and verdict."""
        self._checkpoints: Timer | None = None
        self._is_stopped = False

    def submit_then(
        self, topic: ServedTopic, part: GatedPart, call: Callable[[], None], *, timeout_ms: int
    ) -> None:
        """Sends a part through its gate, once that is open, and calls when it is done.

        A part that has neither a result nor an error then has waited for too long.
        """
        if self._is_stopped:
            raise Closed("the broker is stopping")
        entry = self._get_entry(topic, part.log)
        if entry.is_ready:
            part.gate = entry.gate
            self._appends.submit_then([part], call)
            return
        waiting = _Waiting(part, call)
        entry.waiting.append(waiting)
        waiting.timer = self._timers.call_later(timeout_ms, partial(_give_up, entry, waiting))

    def _get_entry(self, topic: ServedTopic, log: Log) -> _Entry:
        """The entry of a partition, which begins to open where there was none."""
        found = self._entries.get(log.topic_partition)
        if found is not None and found.log is log:
            return found
        if found is not None:
            self._end(log.topic_partition, found)
        rules = find_rules(topic)
        assert rules is not None, "topics that take every record have no gates"
        entry = _Entry(log, rules, state_directory(topic, log))
        self._entries[log.topic_partition] = entry
        entry.opening = self._begin(self._open(entry))
        return entry

    # Open

    async def start(self) -> None:
        """Removes what nobody needs, and begins to open the gates of all topics."""
        gated = [topic for topic in self._topics if find_rules(topic) is not None]
        known = {
            state_name(topic, number)
            for topic in gated
            for number in range(topic.topic.partition_count)
        }
        await self._offload(sweep, self._place.file_system, self._roots, known)
        for topic in gated:
            for log in topic.logs:
                if log is not None:
                    self._get_entry(topic, log)
        self._wait_for_checkpoint()

    def _begin(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _open(self, entry: _Entry) -> None:
        former = self._ending.get(entry.directory)
        if former is not None:
            await asyncio.wait({former})
        async with self._turns:
            if entry.is_ended:
                return
            try:
                entry.gate = await self._offload(self._open_gate, entry)
            except StoreError as error:
                self._note_failure(entry, error)
                return
            except Exception as error:
                logger.exception(
                    "a gate was not opened", extra={"partition": str(entry.log.topic_partition)}
                )
                self._note_failure(entry, error)
                return
        if entry.is_ended:
            return
        entry.is_ready, entry.error = True, None
        self._let_in(entry)

    def _open_gate(self, entry: _Entry) -> "Gate":
        # Loaded here and off the loop: servers without such topics start without it.
        from varve.broker.data.dedup.gate import Gate

        gate = entry.gate or Gate(
            entry.log,
            entry.rules,
            entry.directory,
            self._place,
            is_ended=lambda: entry.is_ended,
            on_failed=partial(self._tell_failure, entry),
        )
        gate.open()
        return gate

    def _tell_failure(self, entry: _Entry, error: StoreError) -> None:
        """Called in the thread of the failure."""
        self._loop.call_soon_threadsafe(self._note_failure, entry, error)

    def _let_in(self, entry: _Entry) -> None:
        """What waited goes first, in its order."""
        while entry.waiting:
            waiting = entry.waiting.popleft()
            _stop_timer(waiting)
            waiting.part.gate = entry.gate
            try:
                self._appends.submit_then([waiting.part], waiting.call)
            except Closed as error:
                waiting.part.error = error
                waiting.call()

    def _note_failure(self, entry: _Entry, error: Exception) -> None:
        """The gate is opened again after a while."""
        if entry.is_ended:
            return
        if entry.error is None:
            logger.error(
                "a gate is closed",
                extra={"partition": str(entry.log.topic_partition), "error": str(error)},
            )
        entry.is_ready, entry.error = False, str(error)
        self._timers.call_later(_RETRY_MS, lambda: self._retry(entry))

    def _retry(self, entry: _Entry) -> None:
        is_opening = entry.opening is not None and not entry.opening.done()
        if not (entry.is_ended or entry.is_ready or is_opening):
            entry.opening = self._begin(self._open(entry))

    # Upkeep

    def _wait_for_checkpoint(self) -> None:
        self._checkpoints = self._timers.call_later(_CHECKPOINT_MS, self._begin_checkpoints)

    def _begin_checkpoints(self) -> None:
        self._begin(self._checkpoint_all())

    async def _checkpoint_all(self) -> None:
        for entry in list(self._entries.values()):
            if entry.is_ready and entry.gate is not None:
                await self._offload(entry.gate.checkpoint)
        if not self._is_stopped:
            self._wait_for_checkpoint()

    def failures(self) -> dict[str, str]:
        """What keeps gates closed, by partition."""
        found = ((str(one), entry.error) for one, entry in self._entries.items())
        return {partition: error for partition, error in found if error is not None}

    def counts(self) -> Counter[tuple[str, str]]:
        """How many records were what, by topic and verdict; in any thread."""
        found = self._past_counts.copy()
        for partition, entry in list(self._entries.items()):
            found += _counts_of(partition.topic, entry)
        return found

    def states(self) -> Counter[str]:
        """How many gates are open, being restored, failed; in any thread."""
        return Counter(_state_of(entry) for entry in list(self._entries.values()))

    # End

    def on_changed(self, partition: TopicPartition) -> None:
        """Follows the settings of a topic, or its end."""
        topic = self._topics.find(partition.topic)
        log = None if topic is None else topic.find_log(partition.partition)
        rules = None if topic is None else find_rules(topic)
        found = self._entries.get(partition)
        if found is not None and (found.rules != rules or found.log is not log):
            self._end(partition, found)
        if topic is not None and rules is not None and log is not None:
            self._get_entry(topic, log)

    def _end(self, partition: TopicPartition, entry: _Entry) -> None:
        """Ends a gate for good; who waits is told to try again."""
        del self._entries[partition]
        entry.is_ended, entry.is_ready = True, False
        self._past_counts += _counts_of(partition.topic, entry)
        _send_away(entry, Closed(f"{partition}: its topic has changed: try again"))
        before = [one for one in (self._ending.get(entry.directory), entry.opening) if one]
        task = self._begin(self._remove(entry, before))
        self._ending[entry.directory] = task
        task.add_done_callback(lambda _: self._forget_ending(entry.directory, task))

    async def _remove(self, entry: _Entry, before: "list[asyncio.Task[None]]") -> None:
        if before:
            await asyncio.wait(before)
        try:
            await self._offload(self._remove_now, entry)
        except OSError as error:
            logger.error(
                "ids that nobody needs were not removed",
                extra={"directory": entry.directory, "error": str(error)},
            )

    def _remove_now(self, entry: _Entry) -> None:
        if entry.gate is not None:
            entry.gate.remove()
        else:
            remove_state(self._place.file_system, entry.directory)

    def _forget_ending(self, directory: str, task: "asyncio.Task[None]") -> None:
        if self._ending.get(directory) is task:
            del self._ending[directory]

    async def stop(self) -> None:
        """Closes all gates; to be called once nothing is appended any more."""
        self._is_stopped = True
        if self._checkpoints is not None:
            self._checkpoints.cancel()
        for entry in self._entries.values():
            entry.is_ended = True
            _send_away(entry, Closed("the broker is stopping"))
        if self._tasks:
            await asyncio.wait(self._tasks)
        for partition, entry in self._entries.items():
            if entry.gate is not None:
                await self._close(partition, entry.gate)

    async def _close(self, partition: TopicPartition, gate: "Gate") -> None:
        try:
            await self._loop.run_in_executor(None, gate.close)
        except (StoreError, OSError) as error:
            # The next start restores them.
            logger.error(
                "ids were not closed", extra={"partition": str(partition), "error": str(error)}
            )

    def abandon(self) -> None:
        """Stops without writing, as a crash does."""
        for entry in self._entries.values():
            entry.is_ended = True
            if entry.gate is not None:
                entry.gate.abandon()


def take(part: AppendPart) -> None:
    """Sends a part through its gate, in the thread of the appends."""
    assert isinstance(part, GatedPart)
    assert part.gate is not None
    try:
        part.result = part.gate.append(part.batch)
    except StoreError as error:
        part.error = error
    except Exception as error:
        logger.exception("an append failed", extra={"partition": str(part.log.topic_partition)})
        part.error = error


def _give_up(entry: _Entry, waiting: _Waiting) -> None:
    entry.waiting.remove(waiting)
    waiting.call()


def _send_away(entry: _Entry, error: StoreError) -> None:
    while entry.waiting:
        waiting = entry.waiting.popleft()
        _stop_timer(waiting)
        waiting.part.error = error
        waiting.call()


def _stop_timer(waiting: _Waiting) -> None:
    if waiting.timer is not None:
        waiting.timer.cancel()


def _state_of(entry: _Entry) -> str:
    if entry.error is not None:
        return "failed"
    return "open" if entry.is_ready else "restoring"


def _counts_of(topic: str, entry: _Entry) -> Counter[tuple[str, str]]:
    if entry.gate is None:
        return Counter()
    return Counter({(topic, name): n for name, n in asdict(entry.gate.counts).items()})
