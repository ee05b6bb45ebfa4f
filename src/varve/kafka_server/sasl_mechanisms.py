"""SASL mechanisms on the server side: PLAIN (RFC 4616) and SCRAM (RFC 5802).

Invariant  SCRAM does not reveal whether a user exists: an unknown user goes through the same steps,
           with a salt that stays the same, and gets the same error.
Threads    the event loop's alone; passwords that are slow to hash are hashed in the blocking pool,
           a few at a time.
"""

import asyncio
import base64
import re
from typing import Final, Protocol

from varve.broker.broker import Broker
from varve.broker.security.credentials import ScramCredentials
from varve.broker.security.plain_users import PlainUsers
from varve.foundation.errors import StoreError
from varve.foundation.scram import ScramCredential, ScramMechanism, is_proof, keyed


class SaslAuthenticationFailed(StoreError):
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
        """Answers a token of the client; raises SaslAuthenticationFailed."""
        ...


class PlainExchange:
    """PLAIN; `hashing` bounds how many passwords are hashed at a time."""

    failure_token: bytes | None = None

    def __init__(self, broker: Broker, users: PlainUsers, hashing: asyncio.Semaphore) -> None:
        self._broker = broker
        self._hashing = hashing
        self._users = users
        self.user = ""
        self.is_done = False

    async def step(self, token: bytes) -> bytes:
        """Answers the token; raises SaslAuthenticationFailed."""
        self.user, password = _parse_plain(token)
        if not await self._is_right(password):
            raise SaslAuthenticationFailed("Authentication failed: Invalid username or password")
        self.is_done = True
        return b""

    async def _is_right(self, password: str) -> bool:
        if not self._users.is_slow:
            return self._users.is_right(self.user, password)
        async with self._hashing:
            return await self._broker.blocking.run(self._users.is_right, self.user, password)


def _parse_plain(token: bytes) -> tuple[str, str]:
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError as error:
        raise SaslAuthenticationFailed("Authentication failed: the token is not UTF-8") from error
    if len(parts) != 3:
        raise SaslAuthenticationFailed(
            f"Authentication failed: Invalid SASL/PLAIN response: expected 3 tokens, got "
            f"{len(parts)}"
        )
    authorization, user, password = parts
    if not user:
        raise SaslAuthenticationFailed("Authentication failed: username not specified")
    if not password:
        raise SaslAuthenticationFailed("Authentication failed: password not specified")
    if authorization not in ("", user):
        raise SaslAuthenticationFailed(
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
        """Answers a token of the client; raises SaslAuthenticationFailed."""
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
            raise SaslAuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different "
                "from username"
            )
        credential = self._credentials.find(self.user, self._mechanism)
        feigned = self._credentials.fake_credential(self.user, self._mechanism)
        self._is_known = credential is not None
        self._credential = credential or feigned
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
        is_right = is_proof(self._mechanism, credential, proof, message)
        is_ours = match["nonce"] == self._nonce and binding == self._header.encode()
        if not (is_right and is_ours and self._is_known):
            raise SaslAuthenticationFailed(
                "Authentication failed during authentication due to invalid credentials with SASL "
                f"mechanism {self._mechanism.sasl_name}"
            )
        self.is_done = True
        signature = keyed(self._mechanism, credential.server_key, message)
        return b"v=" + base64.b64encode(signature)

    def _malformed(self, why: str) -> SaslAuthenticationFailed:
        return SaslAuthenticationFailed(
            f"Authentication failed: a token of {self._mechanism.sasl_name} cannot be read: {why}"
        )


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")
