"""The APIs that varve knows: their keys, their messages, and the versions it serves.

A message declares its key and versions itself; the table is collected from the declarations.

Invariant  Produce is advertised from version 0 on, though served from 3: older librdkafka
           would silently send uncompressed data otherwise, and Kafka does the same.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from varve.wire.messages import cluster, data, groups, security, topics, transactions
from varve.wire.schema import Message, Versions


class ApiKey(IntEnum):
    """Keys of requests, by Kafka's names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


@dataclass(frozen=True, slots=True)
class Api:
    """One kind of request and its response, in the versions that are served."""

    key: ApiKey
    request: type[Message]
    response: type[Message]
    versions: Versions

    @property
    def first_advertised(self) -> int:
        """The first version that ApiVersions reports."""
        return 0 if self.key is ApiKey.PRODUCE else self.versions.first

    def is_flexible(self, version: int) -> bool:
        return version >= self.request.FLEXIBLE


def _collect() -> dict[int, Api]:
    """Pairs the requests and responses of all message modules by their API keys."""
    requests: dict[int, type[Message]] = {}
    responses: dict[int, type[Message]] = {}
    for module in (data, cluster, groups, transactions, topics, security):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Message) and kind.API_KEY >= 0:
                by_key = requests if kind.__name__.endswith("Request") else responses
                by_key[kind.API_KEY] = kind
    return {
        int(key): Api(key, requests[key], responses[key], requests[key].SERVED) for key in ApiKey
    }


APIS: Final[dict[int, Api]] = _collect()
