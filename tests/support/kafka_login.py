"""How a client logs in and whom it trusts, in the settings of each client."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Login:
    """`authority` is the file with the certificate that is trusted, `certificate` one's own."""

    authority: Path
    user: str = ""
    password: str = ""
    mechanism: str = "SCRAM-SHA-256"
    protocol: str = "SASL_SSL"
    certificate: str | None = None

    def for_librdkafka(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"security.protocol": self.protocol}
        if "SSL" in self.protocol:
            settings["ssl.ca.location"] = str(self.authority)
        if self.certificate is not None:
            settings["ssl.certificate.location"] = self.certificate
            settings["ssl.key.location"] = self.certificate
        if "SASL" in self.protocol:
            settings["sasl.mechanism"] = self.mechanism
            settings["sasl.username"] = self.user
            settings["sasl.password"] = self.password
        return settings

    def for_python(self) -> dict[str, Any]:
        """For kafka-python and aiokafka, which take the same names."""
        settings: dict[str, Any] = {"security_protocol": self.protocol}
        if "SSL" in self.protocol:
            context = ssl.create_default_context(cafile=str(self.authority))
            if self.certificate is not None:
                context.load_cert_chain(self.certificate)
            settings["ssl_context"] = context
        if "SASL" in self.protocol:
            settings["sasl_mechanism"] = self.mechanism
            settings["sasl_plain_username"] = self.user
            settings["sasl_plain_password"] = self.password
        return settings
