"""TLS of one listener: the server's certificate, the clients it trusts, and both anew at run time.

Invariant  `context` is asked for at each handshake. A new one knows nothing of sessions with the
           one before, so that nobody gets in by an old certificate.
Threads    `reload` may run off the loop; the context is replaced as a whole.
"""

import os
import ssl
import tempfile
from collections.abc import Callable
from secrets import token_hex
from typing import Final

from varve.broker.context import ANONYMOUS, Principal
from varve.foundation.errors import InvalidSetting
from varve.kafka_server.principal_mapping import PrincipalMapping
from varve.kafka_server.tls_settings import TlsSettings
from varve.kafka_server.tls_stores import Identity, load_identity, load_trusted

_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class Tls:
    """What a listener with TLS needs; raises InvalidSetting for what cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._mapping = PrincipalMapping(settings.principal_mapping_rules)
        self._seen = self._look()
        self.context = _make_context(settings)

    def reload(self) -> None:
        """Reads keys and certificates again, for connections to come.

        Raises InvalidSetting, and then those in use stay.
        """
        seen = self._look()
        self.context = _make_context(self._settings)
        self._seen = seen

    def reload_if_changed(self) -> bool:
        """Reloads when one of the files is another than at the last load; tells whether it did."""
        if self._look() == self._seen:
            return False
        self.reload()
        return True

    def principal_of(self, connection: ssl.SSLObject) -> Principal:
        """Who is behind a connection; raises NoRuleFits for a name without a user."""
        certificate = connection.getpeercert(binary_form=True)
        return ANONYMOUS if certificate is None else self._mapping.principal_of(certificate)

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        paths = (self._settings.keystore_location, self._settings.truststore_location)
        return tuple(_identity_of_file(path) for path in paths)


def _identity_of_file(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _make_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not settings.enabled_protocols:
        raise InvalidSetting("ssl.enabled.protocols is empty; name TLSv1.3, TLSv1.2 or both")
    versions = sorted(_VERSIONS[one] for one in settings.enabled_protocols)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    _use_identity(context, load_identity(settings))
    context.verify_mode = _VERIFY[settings.client_auth]
    trusted = load_trusted(settings)
    if trusted is not None:
        context.load_verify_locations(cadata=trusted)
    elif settings.client_auth != "none":
        raise InvalidSetting(
            f"ssl.client.auth is {settings.client_auth}, but nobody is trusted: set "
            "ssl.truststore.location or ssl.truststore.certificates"
        )
    return context


def _use_identity(
    context: ssl.SSLContext,
    identity: Identity,
    make_password: Callable[[], str] = token_hex,
) -> None:
    """Hands the key over in a file that only this user can read, encrypted with a password that
    nobody keeps: the library takes files only.
    """
    password = make_password()
    descriptor, path = tempfile.mkstemp(prefix="varve-tls-", suffix=".pem")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(identity.encode(password.encode()))
        context.load_cert_chain(path, password=password)
    except ssl.SSLError as error:
        raise InvalidSetting(
            f"the server's key and certificate cannot be used, do they belong together? {error}"
        ) from error
    finally:
        os.unlink(path)
