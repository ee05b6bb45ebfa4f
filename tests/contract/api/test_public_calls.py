"""Rules that every public call keeps, whatever it does: its parameters, its errors, its price."""

import functools
import importlib
import inspect
import json
import subprocess
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

import varve
from varve import errors
from varve.testing.kafka_kit import KafkaKit

MODULES = ("varve", "varve.spark", "varve.testing")
_HEAVY = ("numba", "numpy", "pyarrow", "pandas", "pyspark", "confluent_kafka", "pydantic", "rich")


@functools.cache
def _measure_import(statement: str) -> set[str]:
    program = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return set(json.loads(done.stdout))


# Imports


@pytest.mark.parametrize("statement", ["import varve", "import varve; dir(varve); varve.errors"])
def test_import_varve_is_light(statement: str) -> None:
    bare = _measure_import("import importlib")
    loaded = _measure_import(statement) - bare
    assert loaded.isdisjoint(_HEAVY)
    own = {name for name in loaded if name.partition(".")[0] == "varve"}
    assert own == {"varve", "varve.errors", "varve.foundation", "varve.foundation.errors"}
    assert len(loaded) < 40, sorted(loaded)


def test_every_name_is_exported_and_listed() -> None:
    for module in map(importlib.import_module, MODULES):
        assert list(module.__all__) == sorted(module.__all__)
        assert set(dir(module)) >= set(module.__all__)
        for name in module.__all__:
            assert getattr(module, name) is not None
        with pytest.raises(AttributeError, match="no_such"):
            _ = module.no_such


# Parameters


def _public_callables() -> Iterator[tuple[str, Callable[..., object]]]:
    for module in map(importlib.import_module, MODULES):
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                yield f"{module.__name__}.{name}", value
            elif inspect.isclass(value) and not issubclass(value, BaseException):
                for method, function in inspect.getmembers(value, inspect.isfunction):
                    if not method.startswith("_"):
                        yield f"{module.__name__}.{name}.{method}", function


_OTHERS_INTERFACE = "varve.testing.FaultyObjectStore"
"""Has the parameters of every object store."""


def _is_positional(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    )


def _types_of(annotation: object) -> frozenset[object]:
    """The types that an annotation allows, without None."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return frozenset().union(*map(_types_of, typing.get_args(annotation)))
    return frozenset() if annotation in (None, type(None)) else frozenset({annotation})


def test_two_arguments_of_one_type_are_keyword_only() -> None:
    wrong = []
    for name, function in _public_callables():
        try:
            hints = typing.get_type_hints(function)
        except NameError:  # a name that is imported for types alone
            hints = dict(function.__annotations__)
        if name.startswith(_OTHERS_INTERFACE):
            continue
        given = [
            parameter.name
            for parameter in inspect.signature(function).parameters.values()
            if _is_positional(parameter) and parameter.name not in ("self", "cls")
        ]
        kinds = [_types_of(hints.get(parameter, object())) for parameter in given]
        for index, kind in enumerate(kinds):
            for other in range(index + 1, len(kinds)):
                if kind & kinds[other]:
                    wrong.append(f"{name}({given[index]}, {given[other]})")
    assert wrong == []


def test_every_public_call_has_a_docstring_and_annotations() -> None:
    for name, function in _public_callables():
        assert inspect.getdoc(function) or name.startswith(_OTHERS_INTERFACE), name
        signature = inspect.signature(function)
        for parameter in signature.parameters.values():
            if parameter.name not in ("self", "cls"):
                assert parameter.annotation is not inspect.Parameter.empty, f"{name}: {parameter}"
        assert signature.return_annotation is not inspect.Signature.empty, name


# Errors

_BAD: tuple[object, ...] = (
    *(None, 5, -1, 1.5, True, 2**70, "", "no such", "\ud800", b"\xff", object(), lambda: None),
    *([5], [["k"]], {"a": object()}, {5: 5}, {"no.such": 1}),
)
_GOOD: dict[str, object] = {
    "name": "orders",
    "topic": "orders",
    "value": "v",
    "key": "k",
    "records": [("k", "v")],
    "topics": [],
    "names": [],
    "count": 4,
    "settings": {},
    "timestamp_ms": 5,
    "before": 0,
    "batch": b"",
    "offset": 0,
    "transactional_id": "t",
}
# They end the object, or run user code whose errors are its own.
_LEFT_OUT = {"close", "abandon", "open"}


def _bad_calls(handle: object) -> Iterator[tuple[str, Mapping[str, object]]]:
    for name, function in inspect.getmembers(type(handle), inspect.isfunction):
        if name.startswith("_") or name in _LEFT_OUT:
            continue
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.name != "self"
        ]
        required = {
            parameter.name: _GOOD[parameter.name]
            for parameter in parameters
            if parameter.default is inspect.Parameter.empty
        }
        for parameter in parameters:
            for bad in _BAD:
                if parameter.name != "progress":
                    yield name, {**required, parameter.name: bad}


def _assert_only_typed_errors(handle: object) -> None:
    untyped = []
    for name, arguments in _bad_calls(handle):
        try:
            result = getattr(handle, name)(**arguments)
            if isinstance(result, Iterator):
                list(result)
        except errors.StoreError:
            continue
        except Exception as error:
            untyped.append(f"{name}({arguments}): {error!r}")
    assert untyped == []


def test_bad_arguments_of_a_store_raise_typed_errors(tmp_path: Path) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        topic = store.create_topic("orders", partitions=3)
        topic.append_many([("k", "v"), ("l", "w")])
        _assert_only_typed_errors(topic)
        _assert_only_typed_errors(topic.partition(0))
        _assert_only_typed_errors(store)


def test_bad_arguments_of_a_cluster_raise_typed_errors() -> None:
    with KafkaKit() as kit, varve.connect(kit.bootstrap) as cluster:
        topic = cluster.create_topic("orders", partitions=3)
        topic.append_many([("k", "v"), ("l", "w")])
        _assert_only_typed_errors(topic)
        _assert_only_typed_errors(cluster)


@pytest.mark.parametrize("bad", _BAD)
def test_bad_arguments_of_open_and_connect_raise_typed_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: object
) -> None:
    monkeypatch.chdir(tmp_path)
    for call in (
        lambda: varve.open(bad).close(),  # type: ignore[arg-type]
        lambda: varve.open("data", settings=bad).close(),  # type: ignore[arg-type]
        lambda: varve.connect(bad),  # type: ignore[arg-type]
        lambda: varve.connect("127.0.0.1:9", socket_timeout_ms=bad),
    ):
        try:
            call()
        except errors.StoreError:
            continue
        except Exception as error:
            pytest.fail(f"{bad!r}: {error!r}")


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda vs, at: vs.table(None, at, "t", to="shop.t", mode="no"), "append, upsert"),
        (lambda vs, at: vs.table(None, at, "t", to="shop.t", format="no"), "raw, json, avro"),
        (lambda vs, at: vs.table(None, at, "t", to="t"), "t"),
        (lambda vs, at: vs.erase(None, at, ["t"], keys=["k"], rescan="no"), "full"),
        (lambda vs, at: vs.erase(None, at, ["t"], field="id", values=["1"], format="no"), "json"),
        (lambda vs, at: vs.erase(None, at, ["t"], keys=["k"], grace="soon"), "grace"),
        (lambda vs, at: vs.erase(None, at, ["t"], keys=["k"], finish=True), "finish"),
        (lambda vs, at: vs.expire_table(vs.Catalog(), "shop.t", older_than="soon"), "older_than"),
        (lambda vs, at: vs.compact(None, at, ["t"]), "."),
        (lambda vs, at: vs.snapshot(None, at, "t", to="file:x", at="soon"), "."),
        (lambda vs, at: vs.verify(None, at), "."),
    ],
)
def test_bad_arguments_of_jobs_raise_typed_errors(
    tmp_path: Path, call: Callable[[types.ModuleType, varve.TopicLocation], object], match: str
) -> None:
    with varve.open(tmp_path / "data", maintain=False) as store:
        store.create_topic("t")
    location = varve.TopicLocation(dir=str(tmp_path / "data"))
    with pytest.raises(errors.StoreError, match=match):
        call(importlib.import_module("varve.spark"), location)


_LISTS: dict[str, Callable[[types.ModuleType, varve.TopicLocation, typing.Any], object]] = {
    "compact.topics": lambda vs, at, given: vs.compact(None, at, given),
    "verify.topics": lambda vs, at, given: vs.verify(None, at, given),
    "erase.topics": lambda vs, at, given: vs.erase(None, at, given, keys=["k"]),
    "erase.keys": lambda vs, at, given: vs.erase(None, at, ["t"], keys=given),
    "erase.values": lambda vs, at, given: vs.erase(None, at, ["t"], field="id", values=given),
    "query.columns": lambda vs, at, given: vs.query(None, at, "t", columns=given),
}


def test_every_list_that_a_job_takes_is_known_here() -> None:
    module = importlib.import_module("varve.spark")
    functions = inspect.getmembers(module, inspect.isfunction)
    found = {
        f"{name}.{parameter.name}"
        for name, function in [(name, getattr(module, name)) for name in module.__all__]
        if (name, function) in functions
        for parameter in inspect.signature(function).parameters.values()
        if "Sequence[" in str(parameter.annotation) or "Iterable[" in str(parameter.annotation)
    }
    assert found == set(_LISTS)


@pytest.mark.parametrize("name", _LISTS)
@pytest.mark.parametrize("given", ["user-2", b"user-2", [4711], 4711, {"user-2": 1}])
def test_a_job_takes_no_text_for_a_list(tmp_path: Path, name: str, given: object) -> None:
    """The characters of a text would be taken for topics, keys and values."""
    location = varve.TopicLocation(dir=str(tmp_path))
    with pytest.raises(errors.InvalidRequest, match=rf"^{name.partition('.')[2]}\b") as caught:
        _LISTS[name](importlib.import_module("varve.spark"), location, given)
    assert "user-2" not in str(caught.value)
    assert "4711" not in str(caught.value)


@pytest.mark.parametrize("given", [b"data", [4711], 4711])
def test_a_location_takes_paths_alone(given: object) -> None:
    with pytest.raises(errors.InvalidRequest, match=r"^dir"):
        varve.TopicLocation(dir=given)  # type: ignore[arg-type]
