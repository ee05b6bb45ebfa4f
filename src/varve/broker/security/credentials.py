"""SCRAM credentials of users (RFC 5802, RFC 7677), stored in every log directory.

Layout     `varve-credentials.json`: by user and mechanism salt, iterations and keys in base64,
           and a secret. docs/reference/formats/directory.md
Invariant  neither passwords nor salted passwords are stored. The login of an unknown user gets a
           salt derived from the secret and the name, like that of a known user and the same at
           each attempt: clients cannot find out which users exist.
Crash      see `directory_document`.
Threads    changed off the loop, one change at a time under `_lock`; `users` is replaced as a whole
           and read without it.
"""

import base64
import hmac
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from secrets import token_bytes
from typing import Any, Final

from varve.broker.security.directory_document import DirectoryDocument
from varve.commit_log.health import DirectoryHealth
from varve.commit_log.names import LOCK_FILE
from varve.disk import FileSystem
from varve.foundation.errors import InvalidRequest, Locked
from varve.foundation.scram import (
    ScramCredential,
    ScramMechanism,
    credential_of,
    salted_password,
)

ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 16_384
ITERATIONS: Final = 8_192
"""For credentials that varve makes itself."""
SALT_BYTES: Final = 24
SALT_BYTES_MAX: Final = 1_024
CREDENTIALS_FILE: Final = "varve-credentials.json"
USER_COUNT_MAX: Final = 100_000
_SECRET_BYTES: Final = 32
_NAME_LENGTH_MAX: Final = 1_024

Users = Mapping[str, Mapping[ScramMechanism, ScramCredential]]
Change = tuple[str, ScramMechanism, ScramCredential | None]
"""A user's new credential; None removes it."""


class ScramCredentials:
    """Who may log in with SCRAM. `load` before use."""

    def __init__(
        self,
        fs: FileSystem,
        directories: Sequence[DirectoryHealth],
        *,
        entropy: Callable[[int], bytes] = token_bytes,
    ) -> None:
        self._file = DirectoryDocument(fs, directories, CREDENTIALS_FILE, is_private=True)
        self._lock = threading.Lock()
        self._secret = entropy(_SECRET_BYTES)
        self._typical = _typical_parameters({})
        self.users: Users = {}

    def load(self) -> None:
        """Reads the credentials; raises Corrupt for what it cannot decode."""
        with self._lock:
            secret, users = self._file.read_as(_decode_all)
            if secret is not None:
                self._secret = secret
                self._replace_locked(users)

    def find(self, user: str, mechanism: ScramMechanism) -> ScramCredential | None:
        return self.users.get(user, {}).get(mechanism)

    def fake_credential(self, user: str, mechanism: ScramMechanism) -> ScramCredential:
        """For an unknown user: a credential without a password, the same at every try."""
        salt_bytes, iterations = self._typical[mechanism]
        seed = f"{mechanism.name}:{user}".encode()
        salt = b""
        while len(salt) < salt_bytes:
            salt += hmac.digest(self._secret, seed + len(salt).to_bytes(4, "big"), "sha512")
        key = hmac.digest(self._secret, b"key:" + seed, "sha512")[: mechanism.key_bytes]
        return ScramCredential(salt[:salt_bytes], iterations, stored_key=key, server_key=key)

    def alter(self, changes: Iterable[Change]) -> None:
        """Sets and removes credentials, all or none."""
        with self._lock:
            users = {name: dict(credentials) for name, credentials in self.users.items()}
            for user, mechanism, credential in changes:
                if credential is None:
                    users.get(user, {}).pop(mechanism, None)
                else:
                    users.setdefault(user, {})[mechanism] = credential
            users = {name: credentials for name, credentials in users.items() if credentials}
            if len(users) > USER_COUNT_MAX:
                raise InvalidRequest(
                    f"there would be {len(users)} users, the limit is {USER_COUNT_MAX}; delete some"
                )
            self._file.write(self._encode(users))
            self._replace_locked(users)

    def _replace_locked(self, users: Users) -> None:
        self._typical = _typical_parameters(users)
        self.users = users

    def _encode(self, users: Users) -> dict[str, Any]:
        return {
            "secret": _text(self._secret),
            "users": {
                name: {
                    mechanism.name: _encode(credential)
                    for mechanism, credential in sorted(credentials.items())
                }
                for name, credentials in sorted(users.items())
            },
        }


def make_credential(
    password: str,
    mechanism: ScramMechanism,
    *,
    iterations: int = ITERATIONS,
    entropy: Callable[[int], bytes] = token_bytes,
) -> ScramCredential:
    """A credential of a password, with a salt of its own; raises InvalidRequest."""
    check_iterations(iterations)
    if not password:
        raise InvalidRequest("a password must not be empty")
    salt = entropy(SALT_BYTES)
    salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    return credential_of(mechanism, salted, salt=salt, iterations=iterations)


def check_iterations(iterations: int) -> None:
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        few_or_many = "few" if iterations < ITERATIONS_MIN else "many"
        raise InvalidRequest(
            f"Too {few_or_many} iterations: {iterations}, it must be {ITERATIONS_MIN} to "
            f"{ITERATIONS_MAX}"
        )


def check_user(user: str) -> None:
    if not user:
        raise InvalidRequest("Username must not be empty")
    if len(user) > _NAME_LENGTH_MAX:
        raise InvalidRequest(
            f"a user's name has {len(user)} characters, the limit is {_NAME_LENGTH_MAX}"
        )


def add_credential(
    paths: Sequence[str],
    *,
    fs: FileSystem,
    user: str,
    password: str,
    mechanism: ScramMechanism,
    iterations: int = ITERATIONS,
    entropy: Callable[[int], bytes] = token_bytes,
) -> None:
    """Adds a user to a store that is not served now: how the first user is created.

    `paths` are all log directories of the store. Raises Locked while a server has them.
    """
    check_user(user)
    credential = make_credential(password, mechanism, iterations=iterations, entropy=entropy)
    for path in paths:
        fs.make_directory(path)
    locks = []
    try:
        for path in paths:
            try:
                locks.append(fs.lock(f"{path}/{LOCK_FILE}"))
            except Locked as error:
                raise Locked(
                    f"{path} is in use: change the password of {user} through its server "
                    "with `varve user add`, or stop it first"
                ) from error
        table = ScramCredentials(fs, [DirectoryHealth(path) for path in paths], entropy=entropy)
        table.load()
        table.alter([(user, mechanism, credential)])
    finally:
        for lock in locks:
            lock.release()


def _typical_parameters(users: Users) -> dict[ScramMechanism, tuple[int, int]]:
    """By mechanism, the size of the salt and the iterations that most credentials have."""
    typical = {}
    for mechanism in ScramMechanism:
        parameters = Counter(
            (len(credential.salt), credential.iterations)
            for credentials in users.values()
            if (credential := credentials.get(mechanism)) is not None
        )
        # The largest of those that are equally common: the order of users must not matter.
        best = max(parameters.items(), key=lambda item: (item[1], item[0]), default=None)
        typical[mechanism] = (SALT_BYTES, ITERATIONS) if best is None else best[0]
    return typical


def _encode(credential: ScramCredential) -> dict[str, str | int]:
    return {
        "salt": _text(credential.salt),
        "iterations": credential.iterations,
        "stored_key": _text(credential.stored_key),
        "server_key": _text(credential.server_key),
    }


def _decode_all(content: Mapping[str, Any]) -> tuple[bytes | None, Users]:
    """The secret, None in an empty document, and the users."""
    if not content:
        return None, {}
    users = {
        name: {
            ScramMechanism[key]: _decode(ScramMechanism[key], item)
            for key, item in credentials.items()
        }
        for name, credentials in content["users"].items()
    }
    return base64.b64decode(content["secret"], validate=True), users


def _decode(mechanism: ScramMechanism, item: Mapping[str, Any]) -> ScramCredential:
    salt, stored_key, server_key = (
        base64.b64decode(item[name], validate=True) for name in ("salt", "stored_key", "server_key")
    )
    iterations = item["iterations"]
    if not isinstance(iterations, int) or isinstance(iterations, bool):
        raise TypeError(f"{iterations!r:.40} is not a whole number")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"{iterations} iterations")
    if not 1 <= len(salt) <= SALT_BYTES_MAX:
        raise ValueError(f"a salt of {len(salt)} bytes")
    if {len(stored_key), len(server_key)} != {mechanism.key_bytes}:
        raise ValueError(f"a key of {len(stored_key)} or {len(server_key)} bytes")
    return ScramCredential(salt, iterations, stored_key, server_key)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
