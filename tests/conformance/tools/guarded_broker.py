"""Brokers that ask who one is, by SCRAM over TLS, and let nobody do anything without a right."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
)
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.support.kafka_login import Login

_PATIENCE_SECONDS: Final = 30.0
_ITERATIONS: Final = 4096
RIGHTS: Final = (AclOperation.DESCRIBE, AclOperation.READ, AclOperation.DESCRIBE_CONFIGS)
"""What a server of shapes needs of its topics."""


class GuardedBroker:
    """One that runs; `admin` are the settings of a client that may do everything."""

    def __init__(self, address: str, authority: Path, admin: Mapping[str, Any]) -> None:
        self.address = address
        self.admin = {**admin, "log_level": 0}
        self._authority = authority
        self._client = AdminClient(self.admin)

    def add_user(self, name: str, password: str) -> Login:
        """A new user, or another password for one that is there."""
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, _ITERATIONS)
        change = UserScramCredentialUpsertion(name, info, password.encode())
        for done in self._client.alter_user_scram_credentials([change]).values():
            done.result(_PATIENCE_SECONDS)
        return Login(self._authority, name, password)

    def grant(self, user: str, topic: str, *operations: AclOperation) -> None:
        rights = [
            AclBinding(
                ResourceType.TOPIC,
                topic,
                ResourcePatternType.LITERAL,
                f"User:{user}",
                "*",
                operation,
                AclPermissionType.ALLOW,
            )
            for operation in operations or RIGHTS
        ]
        for done in self._client.create_acls(rights).values():
            done.result(_PATIENCE_SECONDS)

    def withdraw(self, user: str, operation: AclOperation = AclOperation.ANY) -> None:
        """Takes a right away, or all of them."""
        anything: Any = None
        wanted = AclBindingFilter(
            ResourceType.TOPIC,
            anything,
            ResourcePatternType.ANY,
            f"User:{user}",
            anything,
            operation,
            AclPermissionType.ANY,
        )
        for done in self._client.delete_acls([wanted]).values():
            assert done.result(_PATIENCE_SECONDS), f"{user} has no right of this kind"


def options_of(login: Login) -> list[str]:
    """The options of a command of varve."""
    return [word for pair in login.for_librdkafka().items() for word in ("-X", "=".join(pair))]
