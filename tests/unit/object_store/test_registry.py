"""From URL to store."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from varve.foundation import plugins
from varve.foundation.errors import InvalidRequest, InvalidSetting
from varve.foundation.settings import GivenValue
from varve.object_store import (
    DirectoryObjectStore,
    MemoryObjectStore,
    ObjectStore,
    open_object_store,
    register,
)
from varve.object_store import opening as registry


@pytest.fixture(autouse=True)
def _unregistered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})


def open_plugin(url: str, settings: Mapping[str, GivenValue]) -> ObjectStore:
    return MemoryObjectStore(f"{url} {sorted(settings)}")


@pytest.mark.parametrize("form", ["file:{}", "file://{}", "file://localhost{}", "FILE:{}"])
def test_a_directory_by_any_form_of_file_url(form: str, tmp_path: Path) -> None:
    store = open_object_store(form.format(f"{tmp_path}/some%20where"))
    assert isinstance(store, DirectoryObjectStore)
    assert store.name == f"file://{tmp_path}/some where"


def test_memory_stores_share_nothing() -> None:
    first, second = open_object_store("memory:"), open_object_store("memory:")
    first.put("a", b"1")
    assert list(second.list("")) == []


@pytest.mark.parametrize(
    "url",
    ["", "/data/cold", "ftp://host/TOPSECRET", "file:", "file://host/path", "s3:", "s3:///prefix",
     "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket?x=TOPSECRET", "s3://key:TOPSECRET@bucket",
     "gs://", "az://c#TOPSECRET"],
)  # fmt: skip
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        open_object_store(url)
    assert "TOPSECRET" not in str(caught.value)


def test_unknown_settings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="did you mean 'endpoint'"):
        open_object_store("s3://bucket", {"endpoints": "https://host"})
    with pytest.raises(InvalidRequest, match="no settings"):
        open_object_store(f"file:{tmp_path}", {"region": "x"})


def test_a_secret_of_the_wrong_type_is_not_shown() -> None:
    with pytest.raises(InvalidSetting, match="not shown") as caught:
        open_object_store("s3://bucket", {"secret.access.key": 987654321})
    assert "987654321" not in str(caught.value)


def test_a_registered_scheme_is_opened_with_its_settings() -> None:
    register("ours", open_plugin)
    assert open_object_store("ours://place", {"b": 1}).name == "ours://place ['b']"


@pytest.mark.parametrize("scheme", ["s3", "file", "", "Ours", "a:b", "1a"])
def test_some_schemes_cannot_be_registered(scheme: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be registered"):
        register(scheme, open_plugin)


def test_an_installed_package_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", f"{__name__}:open_plugin", registry.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", EntryPoints([point]).select)
    monkeypatch.setattr(EntryPoint, "load", lambda self: open_plugin)
    assert open_object_store("theirs:x").name == "theirs:x []"
    with pytest.raises(InvalidRequest, match="begins with one of"):
        open_object_store("nobodys:x")
