"""One member on its way to its target."""

from uuid import UUID

from varve.broker.groups.assignors import NO_PARTITIONS, Partitions
from varve.broker.groups.consumer_state import ConsumerMember, MemberState, reconcile

TOPIC = UUID(int=7)


def some(*numbers: int) -> Partitions:
    return frozenset((TOPIC, one) for one in numbers)


def step(
    member: ConsumerMember,
    target: Partitions,
    *,
    epoch: int = 5,
    owned: Partitions | None = None,
    held: Partitions = NO_PARTITIONS,
) -> ConsumerMember:
    return reconcile(
        member,
        target=target,
        target_epoch=epoch,
        owned=owned,
        held_by_others=lambda wanted: wanted & held,
    )


def test_a_member_at_its_target_stays_as_it_is() -> None:
    member = ConsumerMember("a", epoch=5, assigned=some(1))
    assert step(member, some(1)) is member


def test_what_it_shall_not_keep_is_asked_back_in_the_old_epoch() -> None:
    member = ConsumerMember("a", epoch=4, assigned=some(1, 2))
    after = step(member, some(2, 3), owned=some(1, 2))
    assert after.state is MemberState.UNREVOKED_PARTITIONS
    assert (after.epoch, after.assigned, after.revoking) == (4, some(2), some(1))


def test_what_it_never_had_need_not_be_given_back() -> None:
    member = ConsumerMember("a", epoch=4, assigned=some(1, 2))
    after = step(member, some(2), owned=some(2))
    assert (after.state, after.epoch, after.assigned) == (MemberState.STABLE, 5, some(2))


def test_partitions_of_others_are_waited_for_in_the_new_epoch() -> None:
    member = ConsumerMember("a", epoch=4)
    waiting = step(member, some(1, 2), held=some(2))
    assert waiting.state is MemberState.UNRELEASED_PARTITIONS
    assert (waiting.epoch, waiting.previous_epoch, waiting.assigned) == (5, 4, some(1))
    assert step(waiting, some(1, 2), held=some(2)).assigned == some(1)
    done = step(waiting, some(1, 2))
    assert (done.state, done.assigned) == (MemberState.STABLE, some(1, 2))


def test_a_target_that_changed_during_a_revocation_is_followed_afterwards() -> None:
    member = ConsumerMember(
        "a",
        epoch=3,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned=some(1, 2),
        revoking=some(3),
    )
    assert step(member, some(3), owned=some(1, 2, 3)) is member
    after = step(member, some(2, 3), owned=some(1, 2))
    assert (after.state, after.epoch) == (MemberState.UNREVOKED_PARTITIONS, 4)
    assert (after.assigned, after.revoking) == (some(2), some(1))
    done = step(after, some(2, 3), owned=some(2))
    assert (done.state, done.epoch, done.assigned) == (MemberState.STABLE, 5, some(2, 3))
