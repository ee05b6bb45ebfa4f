"""Classic groups under any sequence of joins, syncs, leaves, silences and failures of the log."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import hypothesis.strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from tests.support.rounds import machine_settings
from varve.broker.background import BackgroundTasks
from varve.broker.groups.classic_group import ClassicGroup, ClassicState
from varve.broker.groups.classic_member import JoinRequest
from varve.broker.groups.group import GroupServices
from varve.broker.groups.records import GroupLog, Records
from varve.broker.settings import GroupSettings
from varve.broker.stored_configs import StoredConfigs
from varve.disk import MemoryFileSystem
from varve.foundation.clock import ManualClock
from varve.foundation.errors import DirectoryOffline
from varve.testing.kafka_kit import ManualTimers
from varve.wire import ErrorCode, KafkaError
from varve.wire.messages.groups import (
    JoinGroupResponse,
    MemberIdentity,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from varve.wire.messages.state_records import GroupMetadataValue

_REBALANCE_MS = 30_000
_PATIENCE_MS = 1_000_000


@dataclass
class Client:
    """One that behaves as a consumer would, when it is its turn."""

    number: int
    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joins_waiting: int = 0
    syncs_waiting: int = 0
    needs_sync: bool = False
    needs_join: bool = True
    is_silent: bool = False
    session_ms: int = 10_000


class FakeLog:
    """Appends wait until the test completes them."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.appends: list[tuple[asyncio.Future[int], GroupMetadataValue]] = []

    async def append(self, group: str, records: Records) -> int:
        ((_, value),) = records
        assert isinstance(value, GroupMetadataValue)
        done: asyncio.Future[int] = self._loop.create_future()
        self.appends.append((done, value))
        return await done


R = TypeVar("R")


async def _answered(request: Awaitable[R], failed: Callable[[ErrorCode], R]) -> R:
    """The response as the handlers make it."""
    try:
        return await request
    except KafkaError as error:
        return failed(error.code)


def _failed_join(code: ErrorCode) -> JoinGroupResponse:
    return JoinGroupResponse(error_code=code)


def _failed_sync(code: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=code)


def _code_of(request: Callable[..., None], *arguments: Any) -> ErrorCode:
    try:
        request(*arguments)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE


class Groups(RuleBasedStateMachine):
    clients = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.timers = ManualTimers(self.clock)
        self.loop = asyncio.new_event_loop()
        self.log = FakeLog(self.loop)
        self.services = GroupServices(
            log=cast(GroupLog, self.log),
            clock=self.clock,
            timers=self.timers,
            settings=GroupSettings(group_max_size=5),
            configs=StoredConfigs(MemoryFileSystem(self.clock), []),
            random=random.Random(1),
            loop=self.loop,
            tasks=BackgroundTasks(self.loop),
        )
        self.group = ClassicGroup("group", self.services)
        self.waiting: list[tuple[asyncio.Future[Any], Callable[[Any], None]]] = []
        self.everybody: list[Client] = []
        self.leaders: dict[int, set[int]] = {}
        self.assignments: dict[int, list[dict[str, bytes]]] = {}
        self.stored_generations: set[int] = set()

    def _run(self) -> None:
        """Runs tasks as far as they get, and passes on responses in the order of requests."""
        for _ in range(4):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()
        waiting, self.waiting = self.waiting, []
        for future, receive in waiting:
            if future.done():
                receive(future.result())
            else:
                self.waiting.append((future, receive))

    def _join_request(self, client: Client, protocols: str) -> JoinRequest:
        return JoinRequest(
            client_id=f"client{client.number}",
            client_host="/127.0.0.1",
            instance_id=client.instance_id,
            protocol_type="consumer",
            protocols=tuple((name, b"") for name in protocols),
            session_timeout_ms=client.session_ms,
            rebalance_timeout_ms=_REBALANCE_MS,
        )

    # What clients do

    @rule(
        target=clients,
        instance=st.sampled_from([None, None, "a", "b"]),
        session_ms=st.sampled_from([10_000, 60_000]),
    )
    def appear(self, instance: str | None, session_ms: int) -> object:
        if len(self.everybody) >= 8:
            return multiple()
        client = Client(len(self.everybody), instance, session_ms=session_ms)
        self.everybody.append(client)
        return client

    @rule(
        client=clients,
        version=st.sampled_from([3, 5, 9]),
        protocols=st.sampled_from(["r", "rs", "sr"]),
    )
    def join(self, client: Client, version: int, protocols: str) -> None:
        client.joins_waiting += 1

        def joined(response: JoinGroupResponse) -> None:
            client.joins_waiting -= 1
            self._joined(client, response)

        request = self._join_request(client, protocols)
        joining = self.group.join(client.member_id, request, version=version)
        self.waiting.append((self.loop.create_task(_answered(joining, _failed_join)), joined))
        self._run()

    def _joined(self, client: Client, response: JoinGroupResponse) -> None:
        match response.error_code:
            case ErrorCode.NONE:
                client.member_id = response.member_id
                client.generation = response.generation_id
                client.needs_join, client.needs_sync = False, True
                leads = response.leader == response.member_id
                assert bool(response.members) == leads
                if leads and not response.skip_assignment:
                    self.leaders.setdefault(response.generation_id, set()).add(client.number)
                    known = {one.member_id for one in response.members}
                    assert response.member_id in known
            case ErrorCode.MEMBER_ID_REQUIRED:
                client.member_id = response.member_id
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.FENCED_INSTANCE_ID:
                client.member_id = ""
                client.generation = -1
                client.needs_join = True
            case ErrorCode.REBALANCE_IN_PROGRESS | ErrorCode.GROUP_MAX_SIZE_REACHED:
                pass
            case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                pass
            case _:
                raise AssertionError(f"join was answered with {response.error_code}")

    @rule(
        version=st.sampled_from([3, 5, 9]),
        ms=st.sampled_from([500, 3_500]),
        turns=st.integers(1, 6),
        code=st.sampled_from([ErrorCode.NONE] * 8 + [ErrorCode.NOT_COORDINATOR] + [None] * 3),
    )
    def everybody_goes_on(self, version: int, ms: int, turns: int, code: ErrorCode | None) -> None:
        """Each does what a consumer would do next."""
        for _ in range(turns):
            for client in self.everybody:
                if not (client.is_silent or client.joins_waiting or client.syncs_waiting):
                    self._go_on(client, version)
            if code is not None:
                self.store(code)
            self.advance(ms)

    def _go_on(self, client: Client, version: int) -> None:
        if client.needs_join:
            self.join(client, version, "rs")
        elif client.needs_sync:
            self.sync(client)
        else:
            self.heartbeat(client)

    @rule(client=clients)
    def fall_silent_or_speak(self, client: Client) -> None:
        client.is_silent = not client.is_silent

    @rule(client=clients)
    def restart(self, client: Client) -> None:
        """It has forgotten who it was, but for its instance id."""
        client.member_id = ""
        client.needs_join = True

    @rule(client=clients)
    def sync(self, client: Client) -> None:
        generation = client.generation
        leads = (
            self.group.members.leader == client.member_id and generation == self.group.generation
        )
        brought: dict[str, bytes] = {}
        if leads and self.group.state is ClassicState.COMPLETING_REBALANCE:
            brought = {
                id: f"{generation}:{id}:{self.clock.now_ms()}".encode() for id in self.group.members
            }
            self.assignments.setdefault(generation, []).append(brought)
        client.syncs_waiting += 1
        member_id = client.member_id

        def synced(response: SyncGroupResponse) -> None:
            client.syncs_waiting -= 1
            client.needs_sync = False
            client.needs_join = response.error_code != ErrorCode.NONE
            if response.error_code == ErrorCode.NONE:
                assert generation in self.stored_generations
                known = [one.get(member_id) for one in self.assignments[generation]]
                assert response.assignment in known or client.instance_id is not None

        listed = [SyncGroupRequestAssignment(id, data) for id, data in brought.items()]
        request = SyncGroupRequest(
            group_id="group", generation_id=generation, member_id=member_id, assignments=listed
        )
        answered = _answered(self.group.sync(request), _failed_sync)
        self.waiting.append((self.loop.create_task(answered), synced))
        self._run()

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        code = _code_of(
            self.group.heartbeat, client.member_id, client.instance_id, client.generation
        )
        client.needs_join = code is not ErrorCode.NONE
        if code is ErrorCode.NONE:
            assert self.group.generation == client.generation

    @rule(client=clients, is_by_instance=st.booleans())
    def leave(self, client: Client, is_by_instance: bool) -> None:
        id = "" if is_by_instance and client.instance_id else client.member_id
        code = _code_of(self.group.leave, MemberIdentity(id, client.instance_id))
        self._run()
        if code is ErrorCode.NONE:
            assert client.member_id not in self.group.members or id == ""

    # What happens to the group

    @rule(ms=st.sampled_from([500, 3_000, 9_000, 31_000]))
    def advance(self, ms: int) -> None:
        self._pass(ms, 500)

    def _pass(self, ms: int, step_ms: int) -> None:
        while ms > 0:
            self.clock.advance(min(step_ms, ms))
            ms -= step_ms
            self.timers.run_due()
            self._run()

    @rule(code=st.sampled_from([ErrorCode.NONE] * 4 + [ErrorCode.NOT_COORDINATOR]))
    def store(self, code: ErrorCode) -> None:
        if self.log.appends:
            done, value = self.log.appends.pop(0)
            if code is ErrorCode.NONE:
                self.stored_generations.add(value.generation)
                back = ClassicGroup.from_record("group", value, self.services)
                assert set(back.members) == {one.member_id for one in value.members}
                done.set_result(0)
            else:
                done.set_exception(DirectoryOffline("the disk is gone"))
            self._run()

    # What always holds

    @invariant()
    def one_leader_in_each_generation(self) -> None:
        for told in self.leaders.values():
            by_instance = {self.everybody[one].instance_id or one for one in told}
            assert len(by_instance) == 1

    @invariant()
    def the_group_is_whole(self) -> None:
        group = self.group
        assert (group.members.leader in group.members) or not group.members
        assert set(group.members.ids_by_instance.values()) <= set(group.members)
        assert group.members.unsynced <= set(group.members)
        assert not set(group.pending_members) & set(group.members)
        if group.state is ClassicState.COMPLETING_REBALANCE:
            assert self.leaders.get(group.generation), "nobody was told to assign"
        if group.state is ClassicState.EMPTY:
            assert not group.members
        if group.state is ClassicState.STABLE:
            assert not any(one.sync for one in group.members.values())

    @invariant()
    def nobody_is_answered_twice(self) -> None:
        assert all(one.joins_waiting >= 0 for one in self.everybody)
        assert all(one.syncs_waiting >= 0 for one in self.everybody)

    def teardown(self) -> None:
        """When everybody falls silent all are answered, and the group is empty in the end."""
        for _ in range(4):
            while self.log.appends:
                self.store(ErrorCode.NONE)
            self._pass(_PATIENCE_MS // 4, 5_000)
        assert not any(one.joins_waiting or one.syncs_waiting for one in self.everybody)
        assert self.group.state is ClassicState.EMPTY
        assert not self.group.members
        assert not self.group.pending_members
        self.loop.close()


TestGroups = Groups.TestCase
TestGroups.settings = machine_settings(50)
