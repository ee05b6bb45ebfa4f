"""SASL authentication of a client: PLAIN and SCRAM (RFC 4616, RFC 5802, RFC 7677).

Invariant  with SCRAM the server proves that it knows the password too; one that cannot is refused.
"""

import base64
import binascii
import hmac
import secrets
from typing import Final, Protocol

from varve.foundation.errors import InvalidRequest, StoreDenied
from varve.foundation.scram import (
    BY_SASL_NAME,
    ScramMechanism,
    credential_of,
    keyed,
    make_proof,
    salted_password,
)

PLAIN: Final = "PLAIN"
MECHANISMS: Final = (PLAIN, *BY_SASL_NAME)
_ITERATIONS_MAX: Final = 1 << 20
_NO_BINDING: Final = "n,,"


class TokenExchange(Protocol):
    """The connection that tokens are sent over."""

    def exchange_token(self, token: bytes) -> bytes:
        """Sends a token and returns the server's."""
        ...


def log_in(mechanism: str, username: str, password: str, connection: TokenExchange) -> None:
    """Raises StoreDenied for a server that does not prove itself or sends a malformed token."""
    if mechanism == PLAIN:
        connection.exchange_token(f"\0{username}\0{password}".encode())
        return
    if mechanism not in BY_SASL_NAME:
        raise InvalidRequest(f"there is no login by {mechanism!r:.40}: {', '.join(MECHANISMS)}")
    _log_in_by_scram(BY_SASL_NAME[mechanism], username, password, connection)


def _log_in_by_scram(
    mechanism: ScramMechanism, username: str, password: str, connection: TokenExchange
) -> None:
    nonce = secrets.token_urlsafe(24)
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = connection.exchange_token(f"{_NO_BINDING}{first}".encode()).decode(errors="replace")
    salt, iterations, joined_nonce = _read_challenge(challenge, nonce)
    salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final = f"c={binding},r={joined_nonce}"
    messages = f"{first},{challenge},{final}".encode()
    proof = base64.b64encode(make_proof(mechanism, salted, messages)).decode()
    response = connection.exchange_token(f"{final},p={proof}".encode())
    credential = credential_of(mechanism, salted, salt=salt, iterations=iterations)
    signature = keyed(mechanism, credential.server_key, messages)
    expected = b"v=" + base64.b64encode(signature)
    if not hmac.compare_digest(response.partition(b",")[0], expected):
        raise StoreDenied(
            f"the server does not prove that it knows the password of {username!r:.100}: it is not "
            "the intended server, or the password is wrong"
        )


def _read_challenge(text: str, nonce: str) -> tuple[bytes, int, str]:
    """Salt, iterations and the nonce of both sides."""
    try:
        fields = dict(field.split("=", 1) for field in text.split(","))
        salt = base64.b64decode(fields["s"], validate=True)
        iterations, joined_nonce = int(fields["i"]), fields["r"]
    except (ValueError, KeyError, binascii.Error) as error:
        raise StoreDenied(f"the server's challenge {text!r:.100} is not one of SCRAM") from error
    if not joined_nonce.startswith(nonce) or not 1 <= iterations <= _ITERATIONS_MAX:
        raise StoreDenied(f"the server's challenge {text!r:.100} does not answer this client")
    return salt, iterations, joined_nonce
