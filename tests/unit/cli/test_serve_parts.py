"""Every part of the broker that has settings can be set by `varve serve`."""

import inspect

from varve.broker.broker import Broker
from varve.cli.serve_settings import make_plan


def test_all_settings_that_a_broker_takes_are_filled() -> None:
    plan = make_plan({}, ["data"], default_directory="data")
    taken = inspect.signature(Broker).parameters.values()
    assert set(plan.broker) == {
        one.name for one in taken if "Settings" in inspect.formatannotation(one.annotation)
    }


def test_limits_of_groups_and_transactions_reach_their_parts() -> None:
    given = {"group.min.session.timeout.ms": "500", "transaction.max.timeout.ms": "7000"}
    plan = make_plan(given, ["data"], default_directory="data")
    assert plan.broker["groups"].group_min_session_timeout_ms == 500
    assert plan.broker["transactions"].transaction_max_timeout_ms == 7000
    assert not plan.warnings
