"""A static member that comes back under another id (KIP-345).

Where the group is stable and would choose the same protocol, it takes its old place and keeps its
assignment, and the others notice nothing.

Crash      the new id is in the log before its owner is told of it.
Threads    the loop's alone.
"""

from varve.broker.groups.classic_group import ClassicGroup, ClassicState
from varve.broker.groups.classic_member import ClassicMember, JoinReply, Subscriber
from varve.broker.groups.classic_rebalance import ClassicRebalance, Persist, joined
from varve.wire import ErrorCode
from varve.wire.messages.groups import JoinGroupResponse


class StaticRejoin:
    """Gives static members their place back."""

    def __init__(self, rebalance: ClassicRebalance, persist: Persist) -> None:
        self._rebalance = rebalance
        self._persist = persist

    def rejoin(
        self,
        group: ClassicGroup,
        member_id: str,
        subscriber: Subscriber,
        reply: JoinReply,
        *,
        may_skip: bool,
    ) -> None:
        """The instance id is known; whoever had it before is fenced."""
        assert subscriber.instance_id is not None
        member = group.members[group.static_members[subscriber.instance_id]]
        old_leader = group.leader or ""
        member.refuse(ErrorCode.FENCED_INSTANCE_ID)
        group.rename(member, member_id)
        self._rebalance.update(member, subscriber, reply)
        self._rebalance.restart_session(group, member)
        is_stable = group.state is ClassicState.STABLE
        if is_stable and group.select_protocol() == group.protocol:
            self._take_place(group, member, may_skip, old_leader)
        else:
            self._rebalance.rebalance(group)

    def _take_place(
        self, group: ClassicGroup, member: ClassicMember, may_skip: bool, old_leader: str
    ) -> None:
        generation, id = group.generation, member.id
        group.note_subscriptions()

        def stored(error: ErrorCode) -> None:
            is_unchanged = group.state is ClassicState.STABLE and group.generation == generation
            if group.members.get(id) is not member or not is_unchanged:
                return  # It waits for the next generation like all others, or was answered.
            self._rebalance.restart_session(group, member)
            if error is not ErrorCode.NONE:
                self._rebalance.remove(group, member)
            else:
                member.answer_join(_in_old_place(group, member, may_skip, old_leader))

        assignments = {one.id: one.assignment for one in group.members.values()}
        self._persist(group, assignments, stored)


def _in_old_place(
    group: ClassicGroup, member: ClassicMember, may_skip: bool, old_leader: str
) -> JoinGroupResponse:
    """A leader that cannot be told to skip the assignment must not take itself for the leader."""
    response = joined(group, member, skip_assignment=may_skip and group.is_leader(member.id))
    if not may_skip:
        response.leader = old_leader
        response.members = []
    return response
