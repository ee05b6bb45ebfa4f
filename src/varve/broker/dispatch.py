"""Which handler answers which request: the tables of all parts, put together."""

from typing import Final

from varve.broker.broker import Handler
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {}
"""ApiVersions tells clients of these, and of what the server answers itself."""
