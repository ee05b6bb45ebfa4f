"""The plan of a soak of shapes: every deed comes, at moments that the seed decides."""

from tools.soak.shape_plan import Deed, make_plan


def test_the_same_seed_gives_the_same_plan_with_every_deed() -> None:
    plan = make_plan(7, 300.0)
    assert plan == make_plan(7, 300.0)
    assert plan != make_plan(8, 300.0)
    assert {one.deed for one in plan} == set(Deed)
    assert [one.at_seconds for one in plan] == sorted(one.at_seconds for one in plan)
    assert plan[-1].at_seconds < 300.0
