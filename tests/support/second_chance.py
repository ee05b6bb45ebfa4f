"""A second chance for tests of clients of other hands, which lose patience on a busy machine.

Such a test that fails is run once more in fresh fixtures; what it failed for first is told among
the warnings, and what fails twice has failed. Our own tests have one chance.
"""

import warnings
from pathlib import Path
from typing import Final

import pytest
from _pytest.runner import runtestprotocol

_CLIENTS: Final = Path(__file__).parents[1] / "kafka_clients"


# pytest asks all conftests about every test, so the folder is looked at here.
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    if _CLIENTS not in item.path.parents:
        return None
    hooks = item.ihook
    hooks.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, nextitem=nextitem, log=False)
    failed = [one for one in reports if one.failed]
    if failed:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            item.warn(pytest.PytestWarning(f"failed at first: {failed[0].longreprtext[-2000:]}"))
        item._initrequest()  # type: ignore[attr-defined]  # as pytest itself begins a test
        reports = runtestprotocol(item, nextitem=nextitem, log=False)
    for report in reports:
        hooks.pytest_runtest_logreport(report=report)
    hooks.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True
