"""Users by the subject of a client's certificate: `ssl.principal.mapping.rules`.

Invariant  a rule applies when its pattern matches the whole subject; the first that matches
           decides. A client whose subject matches no rule is refused.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from varve.broker.request import Principal
from varve.foundation.errors import InvalidSetting, StoreError

_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)/(?P<replacement>(?:\\.|[^\\/])*)/"
    r"(?P<case>[LU]?))\s*(?:,|\n|$)",
    re.DOTALL,
)
_GROUP: Final = re.compile(r"\\(.)|\$([0-9]+)", re.DOTALL)
_SETTING: Final = "ssl.principal.mapping.rules"


class NoRuleFits(StoreError):
    """No rule matches the subject of a certificate."""


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
        """The user of a certificate (DER); raises NoRuleFits."""
        return Principal("User", self.apply(subject_name(certificate)))

    def apply(self, name: str) -> str:
        """The user of a name such as `CN=alice,OU=people,O=example`; raises NoRuleFits."""
        for rule in self._rules:
            if found := rule.find(name):
                return found
        raise NoRuleFits(f"No rules apply to {name!r:.200}, rules {self._text!r:.200}")


def subject_name(certificate: bytes) -> str:
    """The subject by RFC 2253, the most specific part first."""
    # Imported on use: most servers start without certificates.
    from cryptography import x509

    try:
        return x509.load_der_x509_certificate(certificate).subject.rfc4514_string()
    except ValueError as error:
        raise NoRuleFits(
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
