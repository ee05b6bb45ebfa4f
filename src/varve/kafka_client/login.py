"""Logging in by SASL, as a client: PLAIN and SCRAM (RFC 4616, RFC 5802, RFC 7677).

Invariant  with SCRAM the server proves that it knows the password too; one that cannot is refused.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Final

from varve.foundation.errors import InvalidRequest, StoreDenied

Exchange = Callable[[bytes], bytes]
"""Sends what the client says, and gives the server's answer."""

PLAIN: Final = "PLAIN"
_HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
MECHANISMS: Final = (PLAIN, *_HASHES)
_ITERATIONS_MAX: Final = 1 << 20
_NO_BINDING: Final = "n,,"


def log_in(mechanism: str, username: str, password: str, exchange: Exchange) -> None:
    """Raises StoreDenied for a server that fails to prove itself, or answers out of form."""
    if mechanism == PLAIN:
        exchange(f"\0{username}\0{password}".encode())
        return
    if mechanism not in _HASHES:
        raise InvalidRequest(f"there is no login by {mechanism!r:.40}: {', '.join(MECHANISMS)}")
    _log_in_by_scram(_HASHES[mechanism], username, password, exchange)


def _log_in_by_scram(hash: str, username: str, password: str, exchange: Exchange) -> None:
    nonce = secrets.token_urlsafe(24)
    name = username.replace("=", "=3D").replace(",", "=2C")
    opening = f"n={name},r={nonce}"
    challenge = exchange(f"{_NO_BINDING}{opening}".encode()).decode()
    salt, iterations, joined = _read_challenge(challenge, nonce)
    salted = hashlib.pbkdf2_hmac(hash, password.encode(), salt, iterations)
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    closing = f"c={binding},r={joined}"
    spoken = f"{opening},{challenge},{closing}".encode()
    client_key = hmac.digest(salted, b"Client Key", hash)
    signature = hmac.digest(hashlib.new(hash, client_key).digest(), spoken, hash)
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    answer = exchange(f"{closing},p={base64.b64encode(proof).decode()}".encode()).decode()
    server_key = hmac.digest(salted, b"Server Key", hash)
    expected = f"v={base64.b64encode(hmac.digest(server_key, spoken, hash)).decode()}"
    if not hmac.compare_digest(answer.partition(",")[0].encode(), expected.encode()):
        raise StoreDenied(
            f"the server does not prove that it knows the password of {username!r:.100}: it is not "
            "the one that is meant, or the password is wrong"
        )


def _read_challenge(text: str, nonce: str) -> tuple[bytes, int, str]:
    """Salt, iterations and the nonce of both."""
    try:
        parts = dict(one.split("=", 1) for one in text.split(","))
        salt = base64.b64decode(parts["s"], validate=True)
        iterations, joined = int(parts["i"]), parts["r"]
    except (ValueError, KeyError, binascii.Error) as error:
        raise StoreDenied(f"the server's challenge {text!r:.100} is none of SCRAM") from error
    if not joined.startswith(nonce) or not 1 <= iterations <= _ITERATIONS_MAX:
        raise StoreDenied(f"the server's challenge {text!r:.100} is no answer to this client")
    return salt, iterations, joined
