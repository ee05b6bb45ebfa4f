"""Certificates for tests: an authority that signs for servers and clients."""

import datetime
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(2020, 1, 1)
_END = datetime.datetime(2120, 1, 1)


class Signed:
    """A key and its certificate."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self.key = key
        self.certificate = certificate

    @property
    def certificate_pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def key_pem(self, password: str = "") -> str:
        protection = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection).decode()

    def pkcs12(self, password: str, *authorities: x509.Certificate) -> bytes:
        return pkcs12.serialize_key_and_certificates(
            b"server",
            self.key,
            self.certificate,
            authorities,
            BestAvailableEncryption(password.encode()),
        )

    def write(self, path: Path, password: str = "") -> Path:
        """Key and certificate in one PEM file."""
        path.write_text(self.key_pem(password) + self.certificate_pem)
        return path


class Authority:
    """Signs certificates; its own is what others trust."""

    def __init__(self, name: str = "authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.certificate = _sign(self._name, self._name, self._key, self._key, is_authority=True)

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def sign(
        self,
        common_name: str,
        *,
        unit: str = "people",
        host: str = "localhost",
        is_expired: bool = False,
    ) -> Signed:
        """For a host and, if that is this one, for 127.0.0.1: so that it does for servers, too."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name(
            [
                x509.NameAttribute(NameOID.COUNTRY_NAME, "AT"),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Example"),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
            ]
        )
        signed = _sign(
            name, self._name, key, self._key, is_authority=False, host=host, is_expired=is_expired
        )
        return Signed(key, signed)


def _sign(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    signing: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
    host: str = "localhost",
    is_expired: bool = False,
) -> x509.Certificate:
    addresses = [x509.IPAddress(ip_address("127.0.0.1"))] if host == "localhost" else []
    names = x509.SubjectAlternativeName([x509.DNSName(host), *addresses])
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        encipher_only=False,
        decipher_only=False,
    )
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGIN)
        .not_valid_after(_BEGIN + datetime.timedelta(days=1) if is_expired else _END)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(authority_key, critical=False)
        .add_extension(names, critical=False)
        .sign(signing, hashes.SHA256())
    )
