"""Handlers of topics and settings, by API."""

from typing import Final

from varve.broker.admin.alter_configs import alter_configs, incremental_alter_configs
from varve.broker.admin.create_partitions import create_partitions
from varve.broker.admin.create_topics import create_topics
from varve.broker.admin.delete_topics import delete_topics
from varve.broker.admin.describe_configs import describe_configs
from varve.broker.admin.leaders import elect_leaders, list_partition_reassignments
from varve.broker.admin.log_dirs import describe_log_dirs
from varve.broker.broker import Handler
from varve.wire import ApiKey

HANDLERS: Final[dict[ApiKey, Handler]] = {
    ApiKey.CREATE_TOPICS: create_topics,
    ApiKey.DELETE_TOPICS: delete_topics,
    ApiKey.CREATE_PARTITIONS: create_partitions,
    ApiKey.DESCRIBE_CONFIGS: describe_configs,
    ApiKey.ALTER_CONFIGS: alter_configs,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
    ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
    ApiKey.ELECT_LEADERS: elect_leaders,
    ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
}
