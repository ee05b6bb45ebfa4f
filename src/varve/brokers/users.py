"""The SCRAM users of a broker."""

from typing import Any, NamedTuple

from varve.brokers.client import BrokerClient, admin_api


class ScramUser(NamedTuple):
    user: str
    mechanism: str
    iterations: int


def list_users(client: BrokerClient) -> list[ScramUser]:
    """Users with each of their mechanisms; brokers never reveal passwords."""
    client.check_may_describe("the users")
    future: Any = client.admin().describe_user_scram_credentials()
    users = client.result(future, "the users")
    return [
        ScramUser(name, str(info.mechanism.name).replace("_", "-"), info.iterations)
        for name, user in sorted(users.items())
        for info in user.scram_credential_infos
    ]


def add_user(
    client: BrokerClient, user: str, *, password: str, mechanism: str, iterations: int
) -> None:
    """Add a user, or replace its password."""
    api = admin_api()
    info = api.ScramCredentialInfo(_to_api(mechanism), iterations)
    _alter(client, user, api.UserScramCredentialUpsertion(user, info, password.encode()))


def delete_user(client: BrokerClient, user: str, *, mechanism: str) -> None:
    """Delete a user's credential of one mechanism."""
    _alter(client, user, admin_api().UserScramCredentialDeletion(user, _to_api(mechanism)))


def _alter(client: BrokerClient, user: str, change: Any) -> None:
    [future] = client.admin().alter_user_scram_credentials([change]).values()
    client.result(future, f"user {user}")


def _to_api(mechanism: str) -> Any:
    return admin_api().ScramMechanism[mechanism.replace("-", "_")]
