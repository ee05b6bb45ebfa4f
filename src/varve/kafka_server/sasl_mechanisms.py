"""SASL mechanisms on the server side: PLAIN (RFC 4616) and SCRAM (RFC 5802).

Users of PLAIN come from a file with a line `name=scrypt$...` for each, and from the line of JAAS
that Kafka's own `server.properties` has for a listener, with the passwords in clear.

Invariant  SCRAM does not reveal whether a user exists: an unknown user goes through the same steps,
           with a salt that stays the same, and gets the same error. No password is kept in clear;
           with PLAIN, too, an unknown user takes as long as a known one.
           Logins do not crowd each other out: a password that was right before is not hashed again,
           and the others take turns by the address of their client. Addresses without a login so
           far leave one turn to those that have had one.
Threads    the event loop's alone; passwords that are slow to hash are hashed in the blocking pool,
           a few at a time.
"""

import asyncio
import base64
import hashlib
import hmac
import re
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from secrets import token_bytes
from typing import Final, Protocol

from varve.broker.broker import Broker
from varve.broker.request import CloseConnection, ConnectionContext
from varve.broker.security.credentials import ScramCredentials
from varve.foundation.errors import InvalidSetting, StoreError
from varve.foundation.scram import ScramCredential, ScramMechanism, is_proof, keyed

_SCRYPT_COST: Final = 1 << 14
_SCRYPT_BLOCK_SIZE: Final = 8
_SCRYPT_PARALLELISM: Final = 1
_SCRYPT_COST_MAX: Final = 1 << 17
_SALT_BYTES: Final = 16
_KEY_BYTES: Final = 32
_SCRYPT_MEMORY_MAX: Final = 256 << 20

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
    """The hash for a line `name=hash` of the file of users; takes about a tenth of a second."""
    salt = entropy(_SALT_BYTES)
    key = _scrypt(password, salt, _SCRYPT_COST)
    return "$".join(("scrypt", str(_SCRYPT_COST), _text(salt), _text(key)))


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
        self._unused = _Hash(_SCRYPT_COST, entropy(_SALT_BYTES), entropy(_KEY_BYTES))
        self._secret = entropy(_KEY_BYTES)
        self._digests = {name: self._digest(text) for name, text in (passwords or {}).items()}
        self._verified = dict(self._digests)
        """Digests of passwords that were right, by user: a digest is quicker than the hash."""

    def __len__(self) -> int:
        return len(self._hashes.keys() | self._digests.keys())

    @property
    def is_slow(self) -> bool:
        """Whether `verify_password` takes long enough to be done off the loop."""
        return bool(self._hashes)

    def verify_password(self, user: str, password: str) -> bool:
        by_digest = hmac.compare_digest(
            self._digests.get(user, self._secret), self._digest(password)
        )
        # An unknown user is compared with an unused hash, so that it takes the same time.
        by_hash = self.is_slow and self._hashes.get(user, self._unused).is_of(password)
        if by_hash:
            self._verified[user] = self._digest(password)
        return by_digest or by_hash

    def was_verified(self, user: str, password: str) -> bool:
        """Whether the password is in clear or was found right before; takes no time."""
        verified = self._verified.get(user, self._secret)
        return hmac.compare_digest(verified, self._digest(password))

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
            raise InvalidSetting(f"{where}, line {number}: {name} is named twice")
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
                f'{where}: option {len(users) + 1} or the next one is not name="value"'
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
        is_valid = kind == "scrypt" and is_power and parsed.cost <= _SCRYPT_COST_MAX
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
        r=_SCRYPT_BLOCK_SIZE,
        p=_SCRYPT_PARALLELISM,
        maxmem=_SCRYPT_MEMORY_MAX,
        dklen=_KEY_BYTES,
    )


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class AuthenticationFailed(StoreError):
    """Wrong credentials or a malformed token; the message is sent to the client."""


class SaslExchange(Protocol):
    """One authentication by one mechanism."""

    @property
    def user(self) -> str:
        """The name that the client claims; proven once `is_done`."""
        ...

    @property
    def is_done(self) -> bool: ...

    @property
    def failure_token(self) -> bytes | None:
        """The answer to a client without request headers that failed; None closes silently."""
        ...

    async def step(self, token: bytes) -> bytes:
        """Answers a token of the client; raises AuthenticationFailed."""
        ...


class TooManyLogins(CloseConnection):
    """Its client may try again: an answer that refuses a login is final for Kafka's clients."""

    reason = "login_queue"


_KNOWN_COUNT_MAX: Final = 10_000
_NETWORK_BITS: Final = 64
"""Of an IPv6 address: one client has all addresses that share them."""


class LoginQueue:
    """Logins that wait for their turn: some at a time, then one for each client address in turn.

    Addresses with an earlier login, and those without, each leave one turn to the other.
    """

    def __init__(self, at_once: int, *, waiting_max: int) -> None:
        self._at_once = at_once
        self._kind_max = max(1, at_once - 1)
        self._waiting_max = waiting_max
        self._known: dict[str, None] = {}
        """Networks with a login that succeeded, the oldest first."""
        self._running = {True: 0, False: 0}
        """Logins by whether their network was known when they came, as below."""
        self._waiting: dict[bool, dict[str, deque[asyncio.Future[None]]]] = {True: {}, False: {}}

    def succeeded(self, host: str) -> None:
        """A client of this address has proved its password."""
        network = _network_of(host)
        self._known.pop(network, None)
        self._known[network] = None
        if len(self._known) > _KNOWN_COUNT_MAX:
            del self._known[next(iter(self._known))]

    @asynccontextmanager
    async def turn(self, host: str) -> AsyncIterator[None]:
        """Raises TooManyLogins where too many of the same address wait."""
        network = _network_of(host)
        is_known = network in self._known
        if self._may_start(is_known):
            self._running[is_known] += 1
        else:
            await self._wait(network, is_known)
        try:
            yield
        finally:
            self._end(is_known)

    def _may_start(self, is_known: bool) -> bool:
        is_free = sum(self._running.values()) < self._at_once
        return is_free and self._running[is_known] < self._kind_max

    async def _wait(self, network: str, is_known: bool) -> None:
        turns = self._waiting[is_known].setdefault(network, deque())
        if len(turns) >= self._waiting_max:
            raise TooManyLogins(
                f"{len(turns)} logins of {network} wait, as varve.sasl.logins.max.per.ip allows"
            )
        turn = asyncio.get_running_loop().create_future()
        turns.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._end(is_known)
            raise

    def _end(self, is_known: bool) -> None:
        self._running[is_known] -= 1
        for kind, waiting in self._waiting.items():
            while waiting and self._may_start(kind):
                network = next(iter(waiting))
                turns = waiting.pop(network)
                turn = turns.popleft()
                if turns:
                    waiting[network] = turns  # behind the other addresses
                if not turn.done():
                    self._running[kind] += 1
                    turn.set_result(None)


def _network_of(host: str) -> str:
    """An IPv4 address itself, of an IPv6 address the network that one client may have."""
    if ":" not in host:
        return host
    try:
        return str(ip_network((host.partition("%")[0], _NETWORK_BITS), strict=False))
    except ValueError:
        return host


class PlainExchange:
    """PLAIN; `queue` bounds how many passwords are hashed at a time."""

    failure_token: bytes | None = None

    def __init__(
        self, broker: Broker, users: PlainUsers, queue: LoginQueue, connection: ConnectionContext
    ) -> None:
        self._broker = broker
        self._queue = queue
        self._connection = connection
        self._users = users
        self.user = ""
        self.is_done = False

    async def step(self, token: bytes) -> bytes:
        """Answers the token; raises AuthenticationFailed, or TooManyLogins without an answer."""
        self.user, password = _parse_plain(token)
        if not await self._verify_password(password):
            raise AuthenticationFailed("Authentication failed: Invalid username or password")
        self._queue.succeeded(self._connection.client_host)
        self.is_done = True
        return b""

    async def _verify_password(self, password: str) -> bool:
        if self._users.was_verified(self.user, password):
            return True
        if not self._users.is_slow:
            return self._users.verify_password(self.user, password)
        async with self._queue.turn(self._connection.client_host):
            if self._connection.is_closed:
                raise TooManyLogins("the client did not wait for its login")
            return await self._broker.blocking.run(self._users.verify_password, self.user, password)


def _parse_plain(token: bytes) -> tuple[str, str]:
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError as error:
        raise AuthenticationFailed("Authentication failed: the token is not UTF-8") from error
    if len(parts) != 3:
        raise AuthenticationFailed(
            f"Authentication failed: Invalid SASL/PLAIN response: expected 3 tokens, got "
            f"{len(parts)}"
        )
    authorization, user, password = parts
    if not user:
        raise AuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise AuthenticationFailed("Authentication failed: password not specified")
    if authorization not in ("", user):
        raise AuthenticationFailed(
            "Authentication failed: Client requested an authorization id that is different from "
            "username"
        )
    return user, password


_FIRST: Final = re.compile(
    r"(?P<header>[ny],(?:a=(?P<authorization>[^,]*))?,)"
    r"(?P<bare>n=(?P<user>[^,]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?P<more>(?:,[^,]*)*))",
    re.DOTALL,
)
_FINAL: Final = re.compile(r"c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[^,]+)(?:,[^,]*)*")
_BAD_ESCAPE: Final = re.compile(r"=(?!2C|3D)")


class ScramExchange:
    """SCRAM; `nonce` is the server's, never used before."""

    failure_token: bytes | None = b"e=other-error"

    def __init__(
        self, mechanism: ScramMechanism, credentials: ScramCredentials, nonce: str
    ) -> None:
        self._mechanism = mechanism
        self._credentials = credentials
        self._own_nonce = nonce
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._header = self._first_bare = self._server_first = self._nonce = ""
        self.user = ""
        self.is_done = False

    async def step(self, token: bytes) -> bytes:
        """Answers a token of the client; raises AuthenticationFailed."""
        try:
            text = token.decode()
        except UnicodeDecodeError as error:
            raise self._malformed("it is not UTF-8") from error
        if self._credential is None:
            return self._begin(text)
        return self._finish(text, self._credential)

    def _begin(self, text: str) -> bytes:
        match = _FIRST.fullmatch(text)
        if match is None or "tokenauth=" in match["more"]:
            raise self._malformed("the first one is not of the form n,,n=user,r=nonce")
        if _BAD_ESCAPE.search(match["user"]):
            raise self._malformed("the user's name has an = that is neither =2C nor =3D")
        self.user = _unescape(match["user"])
        if match["authorization"] and _unescape(match["authorization"]) != self.user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        credential = self._credentials.find(self.user, self._mechanism)
        fake = self._credentials.fake_credential(self.user, self._mechanism)
        self._is_known = credential is not None
        self._credential = credential or fake
        self._header, self._first_bare = match["header"], match["bare"]
        self._nonce = match["nonce"] + self._own_nonce
        salt = base64.b64encode(self._credential.salt).decode()
        self._server_first = f"r={self._nonce},s={salt},i={self._credential.iterations}"
        return self._server_first.encode()

    def _finish(self, text: str, credential: ScramCredential) -> bytes:
        without_proof, _, proof_text = text.rpartition(",p=")
        match = _FINAL.fullmatch(without_proof)
        if match is None:
            raise self._malformed("the second one is not of the form c=...,r=nonce,p=proof")
        try:
            proof = base64.b64decode(proof_text, validate=True)
            binding = base64.b64decode(match["binding"], validate=True)
        except ValueError as error:
            raise self._malformed("the second one is not base64 where it must be") from error
        message = f"{self._first_bare},{self._server_first},{without_proof}".encode()
        is_proven = is_proof(self._mechanism, credential, proof, message)
        is_ours = match["nonce"] == self._nonce and binding == self._header.encode()
        if not (is_proven and is_ours and self._is_known):
            raise AuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism.sasl_name}"
            )
        self.is_done = True
        signature = keyed(self._mechanism, credential.server_key, message)
        return b"v=" + base64.b64encode(signature)

    def _malformed(self, why: str) -> AuthenticationFailed:
        return AuthenticationFailed(
            f"Authentication failed: a token of {self._mechanism.sasl_name} cannot be read: {why}"
        )


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
