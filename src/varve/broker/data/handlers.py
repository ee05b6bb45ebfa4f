"""The handlers of this part, by API."""

from typing import Final

from varve.broker.broker import Handler
from varve.broker.data.fetch import answer_fetch
from varve.broker.data.list_offsets import answer_list_offsets
from varve.broker.data.metadata import answer_metadata
from varve.broker.data.produce import answer_produce
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.PRODUCE: answer_produce,
    ApiKey.FETCH: answer_fetch,
    ApiKey.LIST_OFFSETS: answer_list_offsets,
    ApiKey.METADATA: answer_metadata,
}
