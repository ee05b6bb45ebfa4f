"""The soak's judgement finds what is wrong: lost, doubled, swapped, torn and stale records."""

from collections.abc import Iterator

import pytest

from tools.soak import checks
from tools.soak.checks import Found, SequenceCheck, check_group, check_keys
from tools.soak.model import GroupModel, Keys, Partition, Sequence, Transactions
from tools.soak.plan import Deed, make_plan
from tools.soak.transaction_check import check_transactions

ONE: Partition = ("topic", 0)
TWO: Partition = ("topic", 1)


class Shelf:
    """Records that the checks find instead of a server's."""

    def __init__(self) -> None:
        self.records: dict[Partition, list[Found]] = {}

    def put(self, partition: Partition, *values: str, keys: tuple[str, ...] = ()) -> None:
        self.records[partition] = [
            (offset, keys[offset].encode() if keys else None, value.encode() or None)
            for offset, value in enumerate(values)
        ]

    def read(self, bootstrap: str, partition: Partition, start: int = 0) -> Iterator[Found]:
        return iter([one for one in self.records[partition] if one[0] >= start])


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    made = Shelf()
    monkeypatch.setattr(checks, "read_partition", made.read)
    return made


def _sequence_findings(*, may_begin_late: bool = False, uncertain: tuple[int, ...] = ()) -> int:
    sequence = Sequence(sent=4, acknowledged=4, uncertain=set(uncertain))
    return len(SequenceCheck(ONE, may_begin_late=may_begin_late).advance("", sequence))


@pytest.mark.parametrize(
    ("values", "count"),
    [("0123", 0), ("013", 1), ("012", 1), ("00123", 1), ("0213", 2), ("", 1)],
)
def test_lost_doubled_and_swapped_records_are_found(shelf: Shelf, values: str, count: int) -> None:
    shelf.put(ONE, *(f"{one}:x" for one in values))
    assert _sequence_findings() == count


def test_retention_may_take_the_first_and_clients_may_give_up(shelf: Shelf) -> None:
    shelf.put(ONE, "1:x", "3:x")
    assert _sequence_findings(may_begin_late=True) == 1
    assert _sequence_findings(may_begin_late=True, uncertain=(2,)) == 0
    assert _sequence_findings(uncertain=(2,)) == 1


def test_a_second_look_reads_on_from_the_first(shelf: Shelf) -> None:
    look, sequence = SequenceCheck(ONE, may_begin_late=False), Sequence(sent=2, acknowledged=2)
    shelf.put(ONE, "0:", "1:")
    assert look.advance("", sequence) == []
    shelf.put(ONE, "0:", "1:", "1:")
    assert len(look.advance("", sequence)) == 1


def test_a_key_that_is_stale_or_gone_is_found(shelf: Shelf) -> None:
    keys = Keys(latest={b"a": 3, b"b": None})
    shelf.put(ONE, "1:", "3:", "", keys=("a", "a", "b"))
    assert check_keys("", ONE, keys) == ([], 3)
    shelf.put(ONE, "1:", keys=("a",))
    assert len(check_keys("", ONE, keys)[0]) == 1
    shelf.put(ONE, "3:", "2:", keys=("a", "b"))
    assert len(check_keys("", ONE, keys)[0]) == 1
    shelf.put(ONE, "3:", "1:", keys=("a", "a"))
    assert len(check_keys("", ONE, keys)[0]) == 2


def test_torn_aborted_and_lost_transactions_are_found(shelf: Shelf) -> None:
    models = {"id": Transactions(copies={0: 2, 1: 1, 2: 1}, committed={0}, aborted={1})}
    shelf.put(ONE, "id:0", "id:0")
    shelf.put(TWO, "id:0", "id:0")
    assert check_transactions("", [ONE, TWO], models) == []
    shelf.put(TWO, "id:0")
    assert len(check_transactions("", [ONE, TWO], models)) == 1
    shelf.put(TWO, "id:0", "id:0", "id:1")
    assert len(check_transactions("", [ONE, TWO], models)) == 1
    models["id"].uncertain.add(2)
    shelf.put(TWO, "id:0", "id:0", "id:2")
    assert len(check_transactions("", [ONE, TWO], models)) == 1


def test_a_forgotten_commit_and_a_record_nobody_read_are_found() -> None:
    model = GroupModel()
    for offset in (0, 1, 3):
        model.note_read(0, offset)
    model.note_commit({0: 2})
    assert len(check_group({("plain", 0): 1}, "plain", {0: 4}, model)) == 2
    model.note_read(0, 2)
    assert check_group({("plain", 0): 4}, "plain", {0: 4}, model) == []


def test_a_seed_replays_its_plan() -> None:
    plan = make_plan(7, 600)
    assert plan == make_plan(7, 600)
    assert plan != make_plan(8, 600)
    assert {one.deed for one in plan} == set(Deed)


@pytest.mark.parametrize(
    ("one", "two", "count"),
    [(0, 0, 0), (2, 1, 0), (3, 3, 0), (1, 1, 1), (2, 0, 1), (4, 1, 1)],
)
def test_of_a_partial_commit_all_that_was_acknowledged_is_there_or_nothing(
    shelf: Shelf, one: int, two: int, count: int
) -> None:
    model = Transactions(copies={0: 3}, partial={0: {ONE: 2, TWO: 1}})
    shelf.put(ONE, *["a:0"] * one)
    shelf.put(TWO, *["a:0"] * two)
    assert len(check_transactions("", [ONE, TWO], {"a": model})) == count


@pytest.mark.parametrize(("one", "two", "count"), [(0, 0, 0), (2, 2, 0), (2, 0, 1), (1, 2, 1)])
def test_a_transaction_of_unknown_end_is_whole_or_not_there(
    shelf: Shelf, one: int, two: int, count: int
) -> None:
    model = Transactions(copies={0: 2}, uncertain={0})
    shelf.put(ONE, *["a:0"] * one)
    shelf.put(TWO, *["a:0"] * two)
    assert len(check_transactions("", [ONE, TWO], {"a": model})) == count
