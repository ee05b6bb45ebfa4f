"""Results of jobs: figures and failures, encoded as JSON or rendered as an HTML page.

Invariant  the JSON of a result has its fields under their names, or under the `json_name` in their
           metadata; enums by value, keys of mappings as text, times in ms and sizes in bytes. A
           page is one HTML file without external resources and scripts; every value in it is
           escaped.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from varve.foundation.errors import StoreError
from varve.foundation.units import format_bytes

JSON_NAME: Final = "json_name"
"""Metadata key of a field: its name in JSON; None omits the field."""


class JobIncomplete(StoreError):
    """A job ended, but part of its work failed; run it again once the cause is fixed."""


class JsonFields:
    """A dataclass that is encoded as JSON by its fields."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """The fields as values that `json.dumps` accepts."""
        return encode_fields(self)


class JobResult(JsonFields):
    """Base class of the results of jobs."""

    __slots__ = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """One message per failure; empty for jobs that raise their first error."""
        return ()

    def raise_for_failures(self) -> None:
        """Raises JobIncomplete if there are failures."""
        failures = self.failures
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise JobIncomplete(f"{failures[0]}{more}")


def encode_fields(result: Any) -> dict[str, Any]:
    """Encodes the fields of a dataclass as JSON values, nested dataclasses included."""
    names = {field.name: field.metadata.get(JSON_NAME, field.name) for field in fields(result)}
    return {
        name: _encode_value(getattr(result, field))
        for field, name in names.items()
        if name is not None
    }


def _encode_value(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if hasattr(value, "to_json"):
        return value.to_json()
    if is_dataclass(value):
        return encode_fields(value)
    if isinstance(value, Mapping):
        return {str(_encode_value(key)): _encode_value(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode_value(inner) for inner in value]
    return value


# Pages


def render_template(name: str, values: dict[str, Any]) -> str:
    """Renders a template in `templates/`; a missing value is an error."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("varve.jobs"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"moment": _format_moment, "number": "{:,}".format, "size": format_bytes}
    return environment.get_template(name).render(values)


def _format_moment(time_ms: int | None) -> str:
    if time_ms is None:
        return "not given"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
