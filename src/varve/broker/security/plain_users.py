"""Users who log in with PLAIN, which sends the password itself.

Two sources: a file with a line `name=scrypt$...` for each user, and the line of JAAS that Kafka's
own `server.properties` has for a listener, with the passwords in clear.

Invariant  no password is kept in clear. Who is unknown costs as much time as who is known.
"""

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from secrets import token_bytes
from typing import Final

from varve.foundation.errors import InvalidSetting

_COST: Final = 1 << 14
_BLOCK: Final = 8
_PARALLEL: Final = 1
_COST_MAX: Final = 1 << 17
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_MEMORY_MAX: Final = 256 << 20

_PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
_JAAS: Final = re.compile(r"\s*(?P<module>[\w.]+)\s+(?P<flag>\w+)(?P<options>.*?);?\s*", re.DOTALL)
_OPTION: Final = re.compile(
    r"""\s*(?P<name>[^\s="']+)\s*=\s*(?:"(?P<double>(?:[^"\\]|\\.)*)"|'(?P<single>(?:[^'\\]|\\.)*)'"""
    r"""|(?P<bare>[^\s;"']+))""",
    re.DOTALL,
)
_USER_PREFIX: Final = "user_"


@dataclass(frozen=True, slots=True)
class _Hash:
    cost: int
    salt: bytes
    key: bytes

    def is_of(self, password: str) -> bool:
        return hmac.compare_digest(_scrypt(password, self.salt, self.cost), self.key)


def hash_password(password: str, *, entropy: Callable[[int], bytes] = token_bytes) -> str:
    """What stands behind `name=` in the file of users; takes about a tenth of a second."""
    salt = entropy(_SALT_BYTES)
    key = _scrypt(password, salt, _COST)
    return "$".join(("scrypt", str(_COST), _text(salt), _text(key)))


class PlainUsers:
    """Names and what proves their passwords."""

    def __init__(
        self,
        hashes: Mapping[str, str] | None = None,
        passwords: Mapping[str, str] | None = None,
        *,
        entropy: Callable[[int], bytes] = token_bytes,
    ) -> None:
        self._hashes = {name: _parse_hash(name, text) for name, text in (hashes or {}).items()}
        self._unused = _Hash(_COST, entropy(_SALT_BYTES), entropy(_KEY_BYTES))
        self._secret = entropy(_KEY_BYTES)
        self._digests = {name: self._digest(text) for name, text in (passwords or {}).items()}

    def __len__(self) -> int:
        return len(self._hashes.keys() | self._digests.keys())

    @property
    def is_slow(self) -> bool:
        """Whether `is_right` takes long enough to be done off the loop."""
        return bool(self._hashes)

    def is_right(self, user: str, password: str) -> bool:
        by_digest = hmac.compare_digest(
            self._digests.get(user, self._secret), self._digest(password)
        )
        # An unknown user is compared with an unused hash, so that it takes the same time.
        by_hash = self.is_slow and self._hashes.get(user, self._unused).is_of(password)
        return by_digest or by_hash

    def _digest(self, password: str) -> bytes:
        return hmac.digest(self._secret, password.encode(), "sha256")


def parse_users(text: str, where: str) -> dict[str, str]:
    """The lines of a file of users; raises InvalidSetting for one it cannot read."""
    users: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        name, equals, hashed = (part.strip() for part in line.partition("="))
        if not (name and equals and hashed):
            raise InvalidSetting(
                f"{where}, line {number}: not name=hash; `hash_password` makes the hash"
            )
        _parse_hash(name, hashed)
        if name in users:
            raise InvalidSetting(f"{where}, line {number}: {name} stands there twice")
        users[name] = hashed
    return users


def parse_jaas(text: str, where: str) -> dict[str, str]:
    """The users and passwords in Kafka's line for PLAIN; raises InvalidSetting."""
    match = _JAAS.fullmatch(text)
    if match is None or match["module"] != _PLAIN_MODULE:
        raise InvalidSetting(
            f'{where} cannot be read; write `{_PLAIN_MODULE} required user_alice="her password";`'
        )
    users: dict[str, str] = {}
    at, options = 0, match["options"].rstrip()
    while at < len(options):
        option = _OPTION.match(options, at)
        if option is None:
            raise InvalidSetting(
                f'{where}: option {len(users) + 1} or the one behind it is not name="value"'
            )
        at = option.end()
        value = option["double"] or option["single"] or option["bare"] or ""
        if option["name"].startswith(_USER_PREFIX):
            users[option["name"].removeprefix(_USER_PREFIX)] = re.sub(r"\\(.)", r"\1", value)
    return users


def _parse_hash(name: str, text: str) -> _Hash:
    try:
        kind, cost, salt, key = text.split("$")
        parsed = _Hash(
            int(cost), base64.b64decode(salt, validate=True), base64.b64decode(key, validate=True)
        )
        is_power = parsed.cost > 1 and parsed.cost & (parsed.cost - 1) == 0
        is_valid = kind == "scrypt" and is_power and parsed.cost <= _COST_MAX
        if is_valid and parsed.salt and len(parsed.key) == _KEY_BYTES:
            return parsed
    except ValueError:
        pass
    raise InvalidSetting(
        f"the hash of the user {name!r:.80} cannot be read; `hash_password` makes one"
    )


def _scrypt(password: str, salt: bytes, cost: int) -> bytes:
    return hashlib.scrypt(
        password.encode(),
        salt=salt,
        n=cost,
        r=_BLOCK,
        p=_PARALLEL,
        maxmem=_MEMORY_MAX,
        dklen=_KEY_BYTES,
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
