"""What every job returns: figures, and what failed without ending the job; as JSON, as a page.

Invariant  a result as JSON has its fields under their names, or under `json_name` where a field
           declares one; enums by value, mappings by text, times and sizes as they are. A page is
           one file of HTML that needs nothing from elsewhere and runs no script; every value in it
           is shown as text, unless it is Markup, which only the code that draws pictures makes.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any, Final

from varve.foundation.errors import StoreError
from varve.foundation.units import format_bytes

JSON_NAME: Final = "json_name"
"""In the metadata of a field: its name in JSON; None leaves it out."""


class JobIncomplete(StoreError):
    """A job ended, and a part of its work failed; run it again when the cause is mended."""


class JsonFields:
    """A dataclass whose fields are its JSON."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        return encode_fields(self)


class JobResult(JsonFields):
    """The result of a job."""

    __slots__ = ()

    @property
    def failures(self) -> tuple[str, ...]:
        """What failed, a sentence each; nothing for jobs that raise their first error."""
        return ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return self.to_json()

    def raise_for_failures(self) -> None:
        """Raises JobIncomplete where something failed."""
        failures = self.failures
        if failures:
            more = f" (and {len(failures) - 1} more)" if len(failures) > 1 else ""
            raise JobIncomplete(f"{failures[0]}{more}")


def encode_fields(result: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON has them, and those of dataclasses inside of it."""
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
    """The page of a template in `templates/`; a value that it names must be given."""
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
