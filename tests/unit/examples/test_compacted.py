"""examples/topic_classes/compacted.py: the latest settings of each account, for years."""

from examples.topic_classes.compacted import State, live
from varve.testing import VirtualStore

WEEKS_TO_CLEAN = 7
"""The lag of thirty days, the roll after seven and the look once a week, rounded up."""


def _latest(kit: VirtualStore) -> State:
    return {
        record.key.decode(): None if record.value is None else record.value.decode()
        for record in kit.store.topic("accounts").read()
        if record.key is not None
    }


def test_the_last_state_of_every_account_is_right_for_years() -> None:
    state: State = {}
    with VirtualStore() as kit:
        for at in live(kit, state, years=4):
            found = _latest(kit)
            for key, value in state.items():
                assert found.get(key) == value
            accounts = kit.store.topic("accounts")
            for key in list(state)[::50]:
                record = accounts.get(key)
                value = None if record is None or record.value is None else record.value.decode()
                assert value == state[key]
            assert at.kept <= len(state) + WEEKS_TO_CLEAN * 20
        assert at.appended == 4 * 52 * 20
        assert at.kept < at.appended / 10
