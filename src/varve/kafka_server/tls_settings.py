"""Settings of TLS, by Kafka's names; a listener may have its own."""

from collections.abc import Mapping
from dataclasses import dataclass

from varve.foundation.settings import check_settings, declared, parse_settings, setting

_STORE_TYPES = ("PEM", "PKCS12", "JKS")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Which certificate the server shows, and whose certificates it trusts."""

    keystore_location: str = setting(
        "",
        "The file with the server's key and its chain of certificates, PEM or PKCS12.",
        "ssl.keystore.location",
    )
    keystore_type: str = setting(
        "PEM",
        "What kind of file that is; what it holds counts. JKS must be converted.",
        "ssl.keystore.type",
        choices=_STORE_TYPES,
    )
    keystore_password: str = setting("", "The password of a PKCS12 store.", "ssl.keystore.password")
    keystore_certificate_chain: str = setting(
        "",
        "The server's chain of certificates itself, in PEM, instead of a file.",
        "ssl.keystore.certificate.chain",
    )
    keystore_key: str = setting(
        "", "The server's private key itself, in PEM, instead of a file.", "ssl.keystore.key"
    )
    key_password: str = setting("", "The password of the private key.", "ssl.key.password")
    truststore_location: str = setting(
        "",
        "The file with the certificates that clients' certificates are checked against, PEM or "
        "PKCS12.",
        "ssl.truststore.location",
    )
    truststore_type: str = setting(
        "PEM",
        "What kind of file that is; what it holds counts. JKS must be converted.",
        "ssl.truststore.type",
        choices=_STORE_TYPES,
    )
    truststore_password: str = setting(
        "", "The password of a PKCS12 store.", "ssl.truststore.password"
    )
    truststore_certificates: str = setting(
        "",
        "Those certificates themselves, in PEM, instead of a file.",
        "ssl.truststore.certificates",
    )
    client_auth: str = setting(
        "none",
        "Whether clients must show a certificate, may, or are not asked.",
        "ssl.client.auth",
        choices=("none", "requested", "required"),
    )
    enabled_protocols: tuple[str, ...] = setting(
        ("TLSv1.2", "TLSv1.3"),
        "The versions of TLS that are spoken.",
        "ssl.enabled.protocols",
        choices=("TLSv1.2", "TLSv1.3"),
    )
    principal_mapping_rules: str = setting(
        "DEFAULT",
        "How a certificate's name becomes a user: DEFAULT takes it whole, "
        "RULE:pattern/replacement/ a part of it, with L or U in small or large letters; several "
        "separated by commas, the first that fits counts.",
        "ssl.principal.mapping.rules",
    )

    def __post_init__(self) -> None:
        check_settings(self)

    def for_listener(self, overrides: Mapping[str, str], listener: str) -> "TlsSettings":
        """These settings with what one listener has of its own."""
        known = {one.kafka_name for one in declared(TlsSettings)}
        own = {name: value for name, value in overrides.items() if name in known}
        return parse_settings(TlsSettings, own, f"listener {listener}", base=self)
