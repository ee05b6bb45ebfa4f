"""`ssl.principal.mapping.rules` and settings of single listeners are read as Kafka reads them."""

import pytest

from varve.foundation.errors import InvalidSetting
from varve.kafka_server.sasl_mechanisms import AuthenticationFailed
from varve.kafka_server.settings import ListenerOverrides, TlsSettings
from varve.kafka_server.tls import PrincipalMapping

SERVICE = "CN=kafka1.example.com,OU=ServiceUsers,O=Org,C=AT"
ADMIN = "CN=Duke,OU=Admin,O=Org,L=Vienna,ST=Vienna,C=AT"


@pytest.mark.parametrize(
    ("rules", "name", "expected"),
    [
        ("DEFAULT", SERVICE, SERVICE),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", SERVICE, "kafka1.example.com"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", ADMIN, ADMIN),
        ("RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", ADMIN, "duke@admin"),
        (" RULE:^CN=(.*?),.*$/$1/U , DEFAULT ", ADMIN, "DUKE"),
        ("RULE:^CN=(.*?),.*$/$1/U\nDEFAULT", ADMIN, "DUKE"),
        (r"RULE:^CN=(\w+),.*$/a\/$1\$/", ADMIN, "a/Duke$"),
        ("RULE:^cn=(.*?),.*$/$1/,RULE:^CN=(.*?),.*$/second $1/", ADMIN, "second Duke"),
        ("RULE:.*/everybody/", ADMIN, "everybody"),
        ("RULE:^CN=(D|K)(x)?.*$/$1$2/", ADMIN, "D"),
    ],
)
def test_the_first_rule_that_fits_makes_the_user(rules: str, name: str, expected: str) -> None:
    assert PrincipalMapping(rules).apply(name) == expected


def test_a_rule_must_fit_the_whole_name() -> None:
    with pytest.raises(AuthenticationFailed):
        PrincipalMapping("RULE:CN=Duke/duke/").apply(ADMIN)


def test_an_empty_user_is_none() -> None:
    with pytest.raises(AuthenticationFailed):
        PrincipalMapping("RULE:.*()$/$1/").apply(ADMIN)


@pytest.mark.parametrize(
    "rules", ["", "RULE:", "RULE:x/y", "RULE:(/x/", "RULE:x/$1/", "DEFAULT,what", "RULE:x/y/Z"]
)
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(InvalidSetting, match=r"ssl\.principal\.mapping\.rules"):
        PrincipalMapping(rules)


def test_a_listener_has_settings_of_its_own() -> None:
    given = {
        "listener.name.sasl_ssl.plain.sasl.jaas.config": "jaas",
        "listener.name.sasl_ssl.ssl.client.auth": "required",
        "listener.name.in.side.sasl.enabled.mechanisms": "PLAIN",
    }
    overrides = ListenerOverrides(given, ["SASL_SSL", "IN", "IN.SIDE"])
    assert overrides.for_listener("SASL_SSL") == {
        "plain.sasl.jaas.config": "jaas",
        "ssl.client.auth": "required",
    }
    assert overrides.for_listener("IN.SIDE") == {"sasl.enabled.mechanisms": "PLAIN"}
    assert overrides.for_listener("IN") == {}
    base = TlsSettings(keystore_location="k")
    merged = base.for_listener(overrides.for_listener("SASL_SSL"), "SASL_SSL", has_sasl=True)
    assert (merged.client_auth, merged.keystore_location) == ("required", "k")


@pytest.mark.parametrize(
    "name",
    [
        "listener.name.other.ssl.client.auth",
        "listener.name.inside.ssl.client.oath",
        "listener.name.inside.gssapi.sasl.jaas.config",
        "listener.name.inside",
    ],
)
def test_what_no_listener_understands_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match=name):
        ListenerOverrides({name: "x"}, ["INSIDE"])


@pytest.mark.parametrize(
    ("own", "has_sasl", "expected"),
    [
        ({}, False, "required"),
        ({}, True, "none"),
        ({"ssl.client.auth": "requested"}, True, "requested"),
        ({"ssl.client.auth": "requested"}, False, "requested"),
    ],
)
def test_a_listener_with_sasl_asks_for_certificates_only_by_its_own_setting(
    own: dict[str, str], has_sasl: bool, expected: str
) -> None:
    base = TlsSettings(client_auth="required")
    assert base.for_listener(own, "CLIENTS", has_sasl=has_sasl).client_auth == expected
