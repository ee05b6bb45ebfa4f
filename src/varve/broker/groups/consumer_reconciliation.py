"""The way of one member from what it has to what it shall have.

    Stable -> UnrevokedPartitions -> (UnreleasedPartitions ->) Stable

Invariant  a member first gives back what it shall not keep; only then it comes to the epoch of the
           target and gets more, as far as others have given that back. As in Kafka, what a member
           does not name it has given back, or never begun to read.
"""

from collections.abc import Callable
from dataclasses import replace

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions
from varve.broker.groups.consumer_member import ConsumerMember, MemberState

FindHeld = Callable[[Partitions], Partitions]
"""Those of some partitions that members other than the one in question hold."""


def reconcile(
    member: ConsumerMember,
    *,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: FindHeld,
) -> ConsumerMember:
    """The member as it is next; `owned` is what it says it has, None where it says nothing."""
    if member.is_reconciled_to(target_epoch):
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if _owns_any(owned, member.revoking):
            return member
        epoch += 1
    return _next(member, epoch, target, target_epoch, owned, held_by_others)


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """Who does not say what it has may still have everything."""
    return owned is None or not owned.isdisjoint(partitions)


def _next(
    member: ConsumerMember,
    epoch: int,
    target: Partitions,
    target_epoch: int,
    owned: Partitions | None,
    held_by_others: FindHeld,
) -> ConsumerMember:
    kept = member.assigned & target
    revoking = member.assigned - target
    if revoking and _owns_any(owned, revoking):
        return replace(
            member,
            state=MemberState.UNREVOKED_PARTITIONS,
            previous_epoch=member.epoch,
            epoch=epoch,
            assigned=kept,
            revoking=revoking,
        )
    unreleased = held_by_others(target - kept)
    is_complete = not unreleased
    return replace(
        member,
        state=MemberState.STABLE if is_complete else MemberState.UNRELEASED_PARTITIONS,
        previous_epoch=member.epoch,
        epoch=target_epoch,
        assigned=target - unreleased,
        revoking=NO_PARTITIONS,
    )
