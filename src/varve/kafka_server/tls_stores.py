"""Keys and certificates as operators have them: PEM in a setting, PEM or PKCS12 in a file."""

from dataclasses import dataclass
from pathlib import Path
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

from varve.foundation.errors import InvalidSetting
from varve.kafka_server.tls_settings import TlsSettings

_PEM: Final = b"-----BEGIN "
_JKS: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")


@dataclass(frozen=True, slots=True)
class Identity:
    """What a server shows of itself: a private key and the chain of its certificate."""

    key: PrivateKeyTypes
    chain: tuple[Certificate, ...]

    def encode(self, password: bytes) -> bytes:
        """Both in PEM, the key encrypted."""
        key = self.key.private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password)
        )
        return key + b"".join(one.public_bytes(Encoding.PEM) for one in self.chain)


def load_identity(settings: TlsSettings) -> Identity:
    """The server's own; raises InvalidSetting where there is none or it cannot be read."""
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
    data = _read(settings.keystore_location, where)
    if data.lstrip().startswith(_PEM):
        return _identity_of_pem(data, settings.key_password, where)
    found = _load_pkcs12(data, settings.keystore_password, where)
    if found.key is None or found.cert is None:
        raise InvalidSetting(f"{where} holds no private key with its certificate")
    others = [one.certificate for one in found.additional_certs]
    return Identity(found.key, (found.cert.certificate, *others))


def load_trusted(settings: TlsSettings) -> str | None:
    """The certificates that clients' are checked against, in PEM; None where none are told."""
    if settings.truststore_certificates:
        where = "ssl.truststore.certificates"
        return _certificates(settings.truststore_certificates.encode(), where)
    if not settings.truststore_location:
        return None
    where = f"ssl.truststore.location {settings.truststore_location}"
    data = _read(settings.truststore_location, where)
    if data.lstrip().startswith(_PEM):
        return _certificates(data, where)
    found = _load_pkcs12(data, settings.truststore_password, where)
    certificates = [one.certificate for one in found.additional_certs]
    if found.cert is not None:
        certificates.append(found.cert.certificate)
    if not certificates:
        raise InvalidSetting(f"{where} holds no certificate")
    return b"".join(one.public_bytes(Encoding.PEM) for one in certificates).decode()


def _read(path: str, where: str) -> bytes:
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
    try:
        chain = x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise InvalidSetting(f"{where} holds no certificate in PEM: {error!s:.120}") from error
    begin = data.find(_PEM + b"ENCRYPTED PRIVATE KEY")
    if begin < 0:
        begin = _find_key(data, where)
    try:
        key = load_pem_private_key(data[begin:], password.encode() or None)
    except (ValueError, TypeError) as error:
        raise InvalidSetting(
            f"the private key in {where} cannot be read, is ssl.key.password right? {error!s:.120}"
        ) from error
    return Identity(key, tuple(chain))


def _find_key(data: bytes, where: str) -> int:
    for kind in (b"PRIVATE KEY", b"RSA PRIVATE KEY", b"EC PRIVATE KEY"):
        begin = data.find(_PEM + kind)
        if begin >= 0:
            return begin
    raise InvalidSetting(f"{where} holds no private key; put it into the same PEM file")


def _certificates(data: bytes, where: str) -> str:
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise InvalidSetting(f"{where} holds no certificate in PEM: {error!s:.120}") from error
    return b"".join(one.public_bytes(Encoding.PEM) for one in found).decode()


def _load_pkcs12(data: bytes, password: str, where: str) -> pkcs12.PKCS12KeyAndCertificates:
    try:
        return pkcs12.load_pkcs12(data, password.encode() or None)
    except ValueError as error:
        raise InvalidSetting(
            f"{where} is neither PEM nor a PKCS12 store that its password opens: {error!s:.120}"
        ) from error
