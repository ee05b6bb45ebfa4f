"""TLS of one listener: key and trust stores, the context of handshakes, users by certificate.

Keys and certificates come as PEM in a setting, or as PEM or PKCS12 in a file. A client's user
follows from the subject of its certificate by `ssl.principal.mapping.rules`.

Invariant  `context` is read at each handshake. A reloaded context knows no sessions of the one
           before, so that no client resumes one by an old certificate.
           A mapping rule applies when its pattern matches the whole subject; the first that matches
           decides. A client whose subject matches no rule is refused.
Threads    `reload` may run off the event loop; the context is replaced as a whole.
"""

import os
import re
import ssl
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import Certificate

from varve.broker.request import ANONYMOUS, Principal
from varve.foundation.errors import InvalidSetting
from varve.kafka_server.sasl_mechanisms import AuthenticationFailed
from varve.kafka_server.settings import TlsSettings
from varve.kafka_server.tls_alerts import ServerTlsContext

_PEM: Final = b"-----BEGIN "
_KEY_KINDS: Final = (
    b"ENCRYPTED PRIVATE KEY",
    b"PRIVATE KEY",
    b"RSA PRIVATE KEY",
    b"EC PRIVATE KEY",
)
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


@dataclass(frozen=True, slots=True)
class Identity:
    """The server's private key and its certificate chain."""

    key: PrivateKeyTypes
    chain: tuple[Certificate, ...]

    def encode(self, password: bytes) -> bytes:
        """Both in PEM, the key encrypted."""
        key = self.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)
        )
        return key + b"".join(certificate.public_bytes(Encoding.PEM) for certificate in self.chain)


def load_identity(settings: TlsSettings) -> Identity:
    """The server's key and chain; raises InvalidSetting where they are missing or invalid."""
    chain, key = settings.keystore_certificate_chain, settings.keystore_key
    if bool(chain) is not bool(key):
        raise InvalidSetting(
            "ssl.keystore.certificate.chain and ssl.keystore.key belong together: give both"
        )
    if chain:
        data, where = f"{chain}\n{key}".encode(), "ssl.keystore.certificate.chain"
        return _identity_of_pem(data, settings.key_password, where)
    if not settings.keystore_location:
        raise InvalidSetting(
            "a listener with TLS needs a certificate: set ssl.keystore.location, or "
            "ssl.keystore.certificate.chain and ssl.keystore.key"
        )
    where = f"ssl.keystore.location {settings.keystore_location}"
    data = _read_store(settings.keystore_location, where)
    if data.lstrip().startswith(_PEM):
        return _identity_of_pem(data, settings.key_password, where)
    store = _load_pkcs12(data, settings.keystore_password, where)
    if store.key is None or store.cert is None:
        raise InvalidSetting(f"{where} holds no private key with its certificate")
    others = [certificate.certificate for certificate in store.additional_certs]
    return Identity(store.key, (store.cert.certificate, *others))


def load_trusted(settings: TlsSettings) -> str | None:
    """The trusted certificates in PEM; None where none are set."""
    certificates: list[Certificate]
    if settings.truststore_certificates:
        data, where = settings.truststore_certificates.encode(), "ssl.truststore.certificates"
        certificates = _load_certificates(data, where)
    elif not settings.truststore_location:
        return None
    else:
        where = f"ssl.truststore.location {settings.truststore_location}"
        data = _read_store(settings.truststore_location, where)
        if data.lstrip().startswith(_PEM):
            certificates = _load_certificates(data, where)
        else:
            store = _load_pkcs12(data, settings.truststore_password, where)
            own = [] if store.cert is None else [store.cert]
            certificates = [item.certificate for item in (*store.additional_certs, *own)]
    if not certificates:
        raise InvalidSetting(f"{where} holds no certificate")
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates).decode()


def _read_store(path: str, where: str) -> bytes:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidSetting(f"{where} cannot be read: {error.strerror}") from error
    if data.startswith(_JKS):
        raise InvalidSetting(
            f"{where} is a Java key store (JKS), which is not read here; convert it: keytool "
            f"-importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12"
        )
    return data


def _identity_of_pem(data: bytes, password: str, where: str) -> Identity:
    chain = _load_certificates(data, where)
    starts = (data.find(_PEM + kind) for kind in _KEY_KINDS)
    begin = next((start for start in starts if start >= 0), None)
    if begin is None:
        raise InvalidSetting(f"{where} holds no private key; put it into the same PEM file")
    try:
        key = load_pem_private_key(data[begin:], password.encode() or None)
    except (ValueError, TypeError) as error:
        raise InvalidSetting(
            f"the private key in {where} cannot be read, is ssl.key.password right? {error!s:.120}"
        ) from error
    return Identity(key, tuple(chain))


def _load_certificates(data: bytes, where: str) -> list[Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise InvalidSetting(f"{where} holds no certificate in PEM: {error!s:.120}") from error


def _load_pkcs12(data: bytes, password: str, where: str) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError as error:
        raise InvalidSetting(
            f"{where} is neither PEM nor a PKCS12 store that its password opens: {error!s:.120}"
        ) from error


_VERIFY: Final = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


class TlsContext:
    """TLS of one listener; raises InvalidSetting for settings that cannot be used."""

    def __init__(self, settings: TlsSettings) -> None:
        self._settings = settings
        self._mapping = PrincipalMapping(settings.principal_mapping_rules)
        self.context = _make_context(settings)

    def reload(self) -> None:
        """Reads keys and certificates again, for connections to come.

        Raises InvalidSetting, and then those in use stay.
        """
        self.context = _make_context(self._settings)

    def principal_of(self, connection: ssl.SSLObject) -> Principal:
        """The user of a connection by its certificate; raises AuthenticationFailed."""
        certificate = connection.getpeercert(binary_form=True)
        return ANONYMOUS if certificate is None else self._mapping.principal_of(certificate)


def _make_context(settings: TlsSettings) -> ssl.SSLContext:
    context = ServerTlsContext(ssl.PROTOCOL_TLS_SERVER)
    if not settings.enabled_protocols:
        raise InvalidSetting("ssl.enabled.protocols is empty; name TLSv1.3, TLSv1.2 or both")
    versions = sorted(_VERSIONS[protocol] for protocol in settings.enabled_protocols)
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
            f"ssl.client.auth is {settings.client_auth}, but no certificate is trusted: set "
            "ssl.truststore.location or ssl.truststore.certificates"
        )
    return context


def _use_identity(
    context: ssl.SSLContext,
    identity: Identity,
    make_password: Callable[[], str] = token_hex,
) -> None:
    """Loads the key from a temporary file, as `ssl` takes files only.

    The file is readable by this user alone and encrypted with a random password.
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


_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/"
    r"(?P<case>[LU]?))\s*(?:,|\n|$)",
    re.DOTALL,
)
_GROUP: Final = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)
_SETTING: Final = "ssl.principal.mapping.rules"


@dataclass(frozen=True, slots=True)
class _Rule:
    """A pattern of None takes every subject as it is."""

    pattern: re.Pattern[str] | None
    replacement: str
    change_case: Callable[[str], str]

    def find(self, name: str) -> str | None:
        if self.pattern is None:
            return name
        match = self.pattern.fullmatch(name)
        if match is None:
            return None

        def fill(part: re.Match[str]) -> str:
            return part[1] if part[1] is not None else match[int(part[2])] or ""

        return self.change_case(_GROUP.sub(fill, self.replacement))


class PrincipalMapping:
    """The rules in order; raises InvalidSetting for an invalid one."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._rules = _parse(text)

    def principal_of(self, certificate: bytes) -> Principal:
        """The user of a certificate (DER); raises AuthenticationFailed."""
        return Principal("User", self.apply(subject_name(certificate)))

    def apply(self, name: str) -> str:
        """The user of a subject, such as `CN=alice,O=example`; raises AuthenticationFailed."""
        for rule in self._rules:
            if user := rule.find(name):
                return user
        raise AuthenticationFailed(f"No rules apply to {name!r:.200}, rules {self._text!r:.200}")


def subject_name(certificate: bytes) -> str:
    """The subject by RFC 2253, the most specific part first."""
    try:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError as error:
        raise AuthenticationFailed(
            f"the subject of a client's certificate cannot be read: {error}"
        ) from error


def _parse(text: str) -> list[_Rule]:
    rules: list[_Rule] = []
    at, text = 0, text.strip()
    while at < len(text):
        match = _RULE.match(text, at)
        if match is None:
            raise InvalidSetting(
                f"{_SETTING} cannot be read at {text[at:]!r:.80}; write DEFAULT or "
                "RULE:pattern/replacement/, with L or U behind it, and commas between"
            )
        rules.append(_make(match))
        at = match.end()
    if not rules:
        raise InvalidSetting(f"{_SETTING} is empty; write DEFAULT")
    return rules


def _make(match: re.Match[str]) -> _Rule:
    if match["default"]:
        return _Rule(None, "", str)
    try:
        pattern = re.compile(match["pattern"].replace(r"\/", "/"))
    except re.error as error:
        raise InvalidSetting(
            f"{_SETTING}: {match['pattern']!r:.120} is not a valid pattern: {error}"
        ) from error
    for part in _GROUP.finditer(match["replacement"]):
        if part[2] is not None and int(part[2]) > pattern.groups:
            raise InvalidSetting(
                f"{_SETTING}: ${part[2]} does not exist, {match['pattern']!r:.120} has "
                f"{pattern.groups} groups"
            )
    change_case = {"L": str.lower, "U": str.upper}.get(match["case"], str)
    return _Rule(pattern, match["replacement"], change_case)
