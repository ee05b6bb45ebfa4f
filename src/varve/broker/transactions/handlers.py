"""The handlers of this part, by API."""

from typing import Final

from varve.broker.broker import Handler
from varve.broker.transactions.adding import answer_add_offsets, answer_add_partitions
from varve.broker.transactions.ending import answer_end
from varve.broker.transactions.listing import answer_describe, answer_list
from varve.broker.transactions.offset_commit import answer_offset_commit
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.ADD_PARTITIONS_TO_TXN: answer_add_partitions,
    ApiKey.ADD_OFFSETS_TO_TXN: answer_add_offsets,
    ApiKey.END_TXN: answer_end,
    ApiKey.TXN_OFFSET_COMMIT: answer_offset_commit,
    ApiKey.DESCRIBE_TRANSACTIONS: answer_describe,
    ApiKey.LIST_TRANSACTIONS: answer_list,
}
