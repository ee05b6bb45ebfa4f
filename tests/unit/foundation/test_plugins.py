"""Plug-ins are found by name, varve's own before those of installed packages."""

from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import pytest

from varve.foundation import plugins
from varve.foundation.errors import InvalidRequest, Unavailable
from varve.foundation.plugins import PluginRegistry

GROUP = "varve.tests"
REGISTRY: PluginRegistry[Any] = PluginRegistry("test store", GROUP, {"memory": dict})


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints(
        [
            EntryPoint("ordered", "collections:OrderedDict", GROUP),
            EntryPoint("memory", "collections:Counter", GROUP),
            EntryPoint("absent", "no_such_module:Store", GROUP),
        ]
    )
    monkeypatch.setattr(plugins, "entry_points", points.select)


def test_a_built_in_name_cannot_be_replaced() -> None:
    assert REGISTRY.get("memory") is dict


def test_a_package_provides_others() -> None:
    assert REGISTRY.get("ordered").__name__ == "OrderedDict"
    assert REGISTRY.names() == ["memory", "absent", "ordered"]


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    assert REGISTRY.find("other") is None
    with pytest.raises(InvalidRequest, match=r"test store 'other'.*memory, absent, ordered"):
        REGISTRY.get("other")


def test_a_plugin_that_cannot_be_imported_says_why() -> None:
    with pytest.raises(
        Unavailable, match=r"test store 'absent': .*No module named 'no_such_module'.*uninstall"
    ):
        REGISTRY.get("absent")
