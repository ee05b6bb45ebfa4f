"""Pages for people: one file of HTML each, rendered from a template in `templates/`.

Invariant  a page needs nothing from elsewhere and runs no script. Every value is shown as text,
           unless it is Markup, which only the code that draws pictures makes.
"""

from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from varve.foundation.units import format_bytes


def render_template(name: str, values: dict[str, Any]) -> str:
    """The page of a template; a value that it names and is not given is an error."""
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
