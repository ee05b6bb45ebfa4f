"""How a client comes through a door that wants TLS and a password, in the words of each client."""

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Login:
    """By SCRAM over TLS; `authority` is the file with the certificate that is trusted."""

    authority: Path
    user: str
    password: str
    mechanism: str = "SCRAM-SHA-256"

    def for_librdkafka(self) -> dict[str, Any]:
        return {
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority),
            "sasl.mechanism": self.mechanism,
            "sasl.username": self.user,
            "sasl.password": self.password,
        }

    def for_python(self) -> dict[str, Any]:
        """For kafka-python and aiokafka, which take the same names."""
        return {
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(self.authority)),
            "sasl_mechanism": self.mechanism,
            "sasl_plain_username": self.user,
            "sasl_plain_password": self.password,
        }
