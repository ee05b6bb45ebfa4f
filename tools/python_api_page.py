"""The page of the Python API, from the signatures and docstrings of the public names.

Invariant  every name in `__all__` of the public modules is on the page once.
"""

import ast
import importlib
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from enum import Enum
from types import ModuleType

from varve.foundation import errors, settings, topic_records
from varve.spark import functions

MODULES = ("varve", "varve.spark", "varve.testing")

INTRODUCTION = """\
Every public name with its signature and what it raises. By task: [Python API by task](python.md).

`import varve` takes milliseconds: each name is imported when it is first used. Methods and
functions raise `varve.StoreError` and its subclasses only, except where the operating system runs
out of memory or a program interrupts them; [errors](#errors) lists the classes."""

GROUPS = {
    "Open and connect": ("varve.open", "varve.connect"),
    "Stores": ("varve.Store", "varve.StoreHealth", "varve.CleanResult"),
    "Clusters": ("varve.Cluster",),
    "Topics": ("varve.TopicHandle", "varve.Topic", "varve.ClusterTopic", "varve.Partition"),
    "Transactions": ("varve.Producer",),
    "Records": (
        "varve.Record",
        "varve.NewRecord",
        "varve.AppendResult",
        "varve.BulkAppendResult",
        "varve.PartitionOffsets",
        "varve.Batch",
        "varve.RecordColumns",
        "varve.Codec",
    ),
    "Spark: where topics are": ("varve.TopicLocation", "varve.spark.Catalog"),
    "Spark: sessions and reads": (
        "varve.spark.get_session",
        "varve.spark.register",
        "varve.spark.query",
        "varve.spark.read_table",
        "varve.spark.open_snapshot",
    ),
    "Spark: jobs": (
        "varve.spark.compact",
        "varve.spark.snapshot",
        "varve.spark.table",
        "varve.spark.expire_table",
        "varve.spark.erase",
        "varve.spark.dedup",
        "varve.spark.verify",
    ),
    "Testing": (
        "varve.testing.VirtualStore",
        "varve.testing.PlannedCrash",
        "varve.testing.CrashMode",
        "varve.testing.PowerLoss",
        "varve.testing.KafkaKit",
        "varve.testing.FaultyObjectStore",
        "varve.testing.ObjectFaultPlan",
        "varve.testing.ObjectStep",
        "varve.testing.FaultKind",
    ),
}
"""Headings, and the names below them."""

_LISTED_ELSEWHERE = {
    "varve.StoreError",
    "varve.errors",
    "varve.__version__",
    "varve.spark.TopicLocation",
}
"""In the table of errors, under their first name, or a plain value."""

_ALIASES = {
    "GivenBytes": topic_records,
    "GivenBatch": topic_records,
    "GivenHeaders": topic_records,
    "GivenRecord": topic_records,
    "GivenValue": settings,
    "Duration": functions,
    "Time": functions,
    "Settings": functions,
    "AtPosition": functions,
}
"""Names of types in signatures, and the modules that declare them."""


def python_api_page(generated: str) -> str:
    """The text of the page; `generated` is its first line."""
    parts = [generated, "# Python API", INTRODUCTION]
    for heading, names in GROUPS.items():
        parts.append(f"## {heading}")
        for name in names:
            if find_public(name) is not None:
                parts += _describe(name)
    parts += ["## Types in signatures", _alias_table(), "## Errors", _error_table()]
    return "\n\n".join(parts) + "\n"


def public_names() -> set[str]:
    """The full names that must be on the page."""
    modules = [importlib.import_module(module) for module in MODULES]
    names = {f"{module.__name__}.{name}" for module in modules for name in module.__all__}
    return names - _LISTED_ELSEWHERE


def find_public(name: str) -> object | None:
    """A public object by its full name; None for a name that is not exported."""
    module, _, attribute = name.rpartition(".")
    exported: ModuleType = importlib.import_module(module)
    return getattr(exported, attribute) if attribute in exported.__all__ else None


def _describe(name: str) -> Iterator[str]:
    value = find_public(name)
    yield f"### `{name}`"
    if inspect.isfunction(value):
        yield _signature(value, name.rpartition(".")[2])
        yield _text(value)
    elif inspect.isclass(value):
        yield from _describe_class(value, name.rpartition(".")[2])


def _describe_class(value: type, name: str) -> Iterator[str]:
    text = _text(value)
    fields = _fields(value)
    if not fields and "returned by" not in text.lower() and "__init__" in vars(value):
        yield _signature(vars(value)["__init__"], name)
    yield text
    if issubclass(value, Enum):
        yield "Members: " + ", ".join(f"`{member.name}`" for member in value) + "."
    elif fields:
        yield "Fields: " + ", ".join(f"`{field}`" for field in fields) + "."
    properties = []
    for member, kind, function in _members(value):
        if kind == "property":
            properties.append(f"- `{member}`: {_returns(function)}. {_first_line(function)}")
            continue
        yield f"#### `{name}.{member}`"
        yield _signature(function, member, kind)
        yield _text(getattr(value, member))
    if properties:
        yield "Attributes:\n\n" + "\n".join(properties)


def _members(value: type) -> Iterator[tuple[str, str, object]]:
    """Public members with their kind; those of a base that is on the page itself are left out."""
    listed = {find_public(name) for names in GROUPS.values() for name in names} - {value}
    seen = set()
    for base in value.__mro__:
        if base in listed or not base.__module__.startswith("varve") or issubclass(value, Enum):
            continue
        for member, held in vars(base).items():
            if member.startswith("_") or member in seen:
                continue
            seen.add(member)
            if isinstance(held, property):
                yield member, "property", held.fget
            elif isinstance(held, classmethod | staticmethod):
                yield member, type(held).__name__, held.__func__
            elif inspect.isfunction(held):
                yield member, "", held


def _fields(value: type) -> list[str]:
    """The fields of a dataclass or a named tuple, as they are declared."""
    if not hasattr(value, "__dataclass_fields__") and not hasattr(value, "_fields"):
        return []
    tree = ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]
    assert isinstance(tree, ast.ClassDef)
    return [
        f"{node.target.id}: {_annotation(node.annotation)}"
        for node in tree.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and not node.target.id.startswith("_")
        and "ClassVar" not in ast.unparse(node.annotation)
    ]


def _node(function: object) -> ast.FunctionDef:
    source = textwrap.dedent(inspect.getsource(function))  # type: ignore[arg-type]
    [node] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    return node


def _annotation(node: ast.expr | None) -> str:
    """An annotation as it is written, without the quotes of a name that is imported for types."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ast.unparse(node).replace("'", "")


def _returns(function: object) -> str:
    return f"`{_annotation(_node(function).returns)}`"


def _signature(function: object, name: str, kind: str = "") -> str:
    """A signature on one line, or with a line for each parameter."""
    node = _node(function)
    parameters = list(_parameters(node.args))
    arrow = "" if name[0].isupper() else f" -> {_annotation(node.returns)}"
    prefix = f"@{kind}\n" if kind else ""
    line = f"{name}({', '.join(parameters)}){arrow}"
    if len(line) > 100:
        lines = "".join(f"    {parameter},\n" for parameter in parameters)
        line = f"{name}(\n{lines}){arrow}"
    return f"```text\n{prefix}{line}\n```"


def _parameters(arguments: ast.arguments) -> Iterator[str]:
    given = [*arguments.posonlyargs, *arguments.args]
    defaults: Sequence[ast.expr | None] = [
        *([None] * (len(given) - len(arguments.defaults))),
        *arguments.defaults,
    ]
    for argument, default in zip(given, defaults, strict=True):
        if argument.arg not in ("self", "cls"):
            yield _parameter(argument, default)
    if arguments.vararg:
        yield f"*{_parameter(arguments.vararg, None)}"
    elif arguments.kwonlyargs:
        yield "*"
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield _parameter(argument, default)
    if arguments.kwarg:
        yield f"**{_parameter(arguments.kwarg, None)}"


def _parameter(argument: ast.arg, default: ast.expr | None) -> str:
    text = f"{argument.arg}: {_annotation(argument.annotation)}"
    return text if default is None else f"{text} = {ast.unparse(default)}"


def _text(value: object) -> str:
    return inspect.getdoc(value) or ""


def _first_line(value: object) -> str:
    return " ".join(_text(value).partition("\n\n")[0].split())


def _alias_table() -> str:
    rows = []
    for name, module in _ALIASES.items():
        for node in ast.parse(inspect.getsource(module)).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                meaning = ast.unparse(node.value).replace("|", "\\|")
                rows.append(f"| `{name}` | `{meaning}` |")
    return "\n".join(["| Name | Stands for |", "| --- | --- |", *rows])


def _error_table() -> str:
    """The classes of errors below those they belong to."""
    rows = [
        "| Class in `varve.errors` | Is a | Try again? | Meaning |",
        "| --- | --- | --- | --- |",
    ]
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, BaseException):
            base = value.__mro__[1].__name__
            again = "yes" if getattr(value, "retriable", False) else ""
            rows.append(f"| `{name}` | `{base}` | {again} | {_first_line(value)} |")
    return "\n".join(rows)
