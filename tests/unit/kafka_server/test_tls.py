"""TLS from every form of certificate, clients with certificates, and new ones at run time."""

import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from tests.support.certificates import Authority, Signed
from varve.broker.request import ANONYMOUS
from varve.foundation.errors import InvalidSetting
from varve.kafka_server.settings import TlsSettings
from varve.kafka_server.tls import TlsContext


class _World:
    """One authority, a server and a client that it signed for, and a stranger."""

    def __init__(self) -> None:
        self.authority = Authority()
        self.server = self.authority.sign("server")
        self.alice = self.authority.sign("alice")
        self.stranger = Authority("other").sign("mallory")

    @property
    def settings(self) -> TlsSettings:
        return TlsSettings(
            keystore_certificate_chain=self.server.certificate_pem,
            keystore_key=self.server.key_pem(),
            truststore_certificates=self.authority.pem,
        )


@pytest.fixture(scope="module")
def world() -> _World:
    return _World()


def _client(world: _World, who: Signed | None, tmp_path: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=world.authority.pem)
    if who is not None:
        context.load_cert_chain(who.write(tmp_path / "client.pem"))
    return context


def _shake(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends after a handshake in memory; raises what keeps them from it."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(10):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    for end in ends:
        end.do_handshake()
    return ends


def _check(settings: TlsSettings, world: _World, tmp_path: Path) -> None:
    tls = TlsContext(settings)
    client, server = _shake(tls.context, _client(world, None, tmp_path))
    assert client.getpeercert(binary_form=True) is not None
    assert tls.principal_of(server) == ANONYMOUS


def test_keys_and_certificates_stand_in_the_settings(world: _World, tmp_path: Path) -> None:
    _check(world.settings, world, tmp_path)
    encrypted = replace(
        world.settings, keystore_key=world.server.key_pem("sesame"), key_password="sesame"
    )
    _check(encrypted, world, tmp_path)


def test_keys_and_certificates_stand_in_a_pem_file(world: _World, tmp_path: Path) -> None:
    file = world.server.write(tmp_path / "server.pem", "sesame")
    (tmp_path / "trust.pem").write_text(world.authority.pem)
    settings = TlsSettings(
        keystore_location=str(file),
        key_password="sesame",
        truststore_location=str(tmp_path / "trust.pem"),
    )
    _check(settings, world, tmp_path)


def test_keys_and_certificates_stand_in_pkcs12_stores(world: _World, tmp_path: Path) -> None:
    (tmp_path / "server.p12").write_bytes(
        world.server.pkcs12("sesame", world.authority.certificate)
    )
    trusted = pkcs12.serialize_java_truststore(
        [pkcs12.PKCS12Certificate(world.authority.certificate, b"authority")],
        BestAvailableEncryption(b"open"),
    )
    (tmp_path / "trust.p12").write_bytes(trusted)
    settings = TlsSettings(
        keystore_location=str(tmp_path / "server.p12"),
        keystore_type="PKCS12",
        keystore_password="sesame",
        truststore_location=str(tmp_path / "trust.p12"),
        truststore_password="open",
        client_auth="required",
    )
    tls = TlsContext(settings)
    _, server = _shake(tls.context, _client(world, world.alice, tmp_path))
    assert tls.principal_of(server).name == "CN=alice,OU=people,O=Example,C=AT"


def test_no_key_is_left_behind_in_a_file(
    world: _World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    TlsContext(world.settings)
    assert list(tmp_path.iterdir()) == []


def test_a_client_shows_who_it_is(world: _World, tmp_path: Path) -> None:
    rules = r"RULE:^CN=(.*?),OU=people.*$/$1/U,DEFAULT"
    settings = replace(world.settings, client_auth="required", principal_mapping_rules=rules)
    tls = TlsContext(settings)
    _, server = _shake(tls.context, _client(world, world.alice, tmp_path))
    assert str(tls.principal_of(server)) == "User:ALICE"


def test_a_client_without_a_certificate_is_refused_where_it_needs_one(
    world: _World, tmp_path: Path
) -> None:
    tls = TlsContext(replace(world.settings, client_auth="required"))
    with pytest.raises(ssl.SSLError):
        _shake(tls.context, _client(world, None, tmp_path))


@pytest.mark.parametrize("client_auth", ["requested", "required"])
def test_a_certificate_of_a_stranger_is_refused(
    world: _World, tmp_path: Path, client_auth: str
) -> None:
    tls = TlsContext(replace(world.settings, client_auth=client_auth))
    with pytest.raises(ssl.SSLError):
        _shake(tls.context, _client(world, world.stranger, tmp_path))


def test_a_client_that_is_asked_but_shows_nothing_is_nobody(world: _World, tmp_path: Path) -> None:
    tls = TlsContext(replace(world.settings, client_auth="requested"))
    _, server = _shake(tls.context, _client(world, None, tmp_path))
    assert tls.principal_of(server) == ANONYMOUS


def test_only_the_enabled_versions_are_spoken(world: _World, tmp_path: Path) -> None:
    tls = TlsContext(replace(world.settings, enabled_protocols=("TLSv1.3",)))
    client = _client(world, None, tmp_path)
    assert _shake(tls.context, client)[0].version() == "TLSv1.3"
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        _shake(tls.context, client)


def test_new_certificates_are_shown_without_a_restart(world: _World, tmp_path: Path) -> None:
    keystore, truststore = tmp_path / "server.pem", tmp_path / "trust.pem"
    world.server.write(keystore)
    truststore.write_text(world.authority.pem)
    tls = TlsContext(
        TlsSettings(
            keystore_location=str(keystore),
            truststore_location=str(truststore),
            client_auth="required",
        )
    )
    client = _client(world, world.alice, tmp_path)
    assert _serial(_shake(tls.context, client)[0]) == world.server.certificate.serial_number
    other = world.authority.sign("server")
    other.write(keystore)
    tls.reload()
    assert _serial(_shake(tls.context, client)[0]) == other.certificate.serial_number
    truststore.write_text(Authority("another").pem)
    tls.reload()
    with pytest.raises(ssl.SSLError):
        _shake(tls.context, client)


def _serial(end: ssl.SSLObject) -> int:
    found = end.getpeercert()
    assert found is not None
    return int(str(found["serialNumber"]), 16)


def test_certificates_that_cannot_be_used_leave_the_old_ones(world: _World, tmp_path: Path) -> None:
    keystore = world.server.write(tmp_path / "server.pem")
    tls = TlsContext(TlsSettings(keystore_location=str(keystore)))
    keystore.write_text("nonsense")
    with pytest.raises(InvalidSetting):
        tls.reload()
    _shake(tls.context, _client(world, None, tmp_path))
    world.server.write(keystore)
    tls.reload()


def test_settings_that_cannot_be_used_are_told(world: _World, tmp_path: Path) -> None:
    jks = tmp_path / "old.jks"
    jks.write_bytes(b"\xfe\xed\xfe\xed\0\0\0\2")
    p12 = tmp_path / "server.p12"
    p12.write_bytes(world.server.pkcs12("sesame"))
    no_key = tmp_path / "no_key.pem"
    no_key.write_text(world.server.certificate_pem)
    wrong = [
        ({"keystore_certificate_chain": "", "keystore_key": ""}, "needs a certificate"),
        ({"keystore_key": ""}, "give both"),
        ({"keystore_key": world.alice.key_pem()}, "belong together"),
        ({"keystore_key": world.alice.key_pem("x")}, r"ssl\.key\.password"),
        ({"keystore_certificate_chain": "nonsense"}, "no certificate in PEM"),
        ({"truststore_certificates": "nonsense"}, "no certificate in PEM"),
        ({"truststore_certificates": "", "client_auth": "required"}, "no certificate is trusted"),
        ({"enabled_protocols": ()}, "is empty"),
        ({"principal_mapping_rules": "nonsense"}, "cannot be read"),
    ]
    files = [
        (str(jks), "convert it: keytool -importkeystore"),
        (str(p12), "that its password opens"),
        (str(no_key), "no private key"),
        (str(tmp_path / "missing"), "No such file"),
    ]
    for change, told in wrong:
        with pytest.raises(InvalidSetting, match=told):
            TlsContext(replace(world.settings, **change))  # type: ignore[arg-type]  # one change each
    for path, told in files:
        with pytest.raises(InvalidSetting, match=told):
            TlsContext(TlsSettings(keystore_location=path))
