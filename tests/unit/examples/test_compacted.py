"""examples/topic_classes/compacted.py: the latest settings of each account, for years."""

from examples.topic_classes.compacted import SETTINGS, State, live
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


def test_superseded_values_and_old_tombstones_are_off_the_disk() -> None:
    with VirtualStore() as kit:
        accounts = kit.store.create_topic("accounts", settings=SETTINGS)
        accounts.append(key="eve", value="street and number")
        accounts.append(key="ann", value="old")
        accounts.append(key="ann", value="new")
        kit.advance(days=7)
        kit.run_background()
        accounts.append(key="eve", value=None)
        for week in range(WEEKS_TO_CLEAN + 3):
            accounts.append(key=f"other-{week}", value="x")
            kit.advance(days=7)
            kit.run_background()
        records = {record.key: record.value for record in accounts.read()}
        assert records[b"ann"] == b"new"
        assert b"eve" not in records
        assert accounts.get("eve") is None
        files = [name for name in kit.fs.names("/data/accounts-0") if ".log" in name]
        data = b"".join(kit.fs.read(f"/data/accounts-0/{name}") for name in files)
        assert b"street" not in data
        assert b"eve" not in data
        assert all(report.is_clean for report in kit.store.audit("accounts"))
