"""A second chance for tests that lose against a busy machine, such as those of other clients.

A test that fails is run once more in fresh fixtures; what it failed for first is told among the
warnings, and what fails twice has failed.
"""

import warnings

import pytest
from _pytest.runner import runtestprotocol


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
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
