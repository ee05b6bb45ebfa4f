"""Who a client is, step by step: the handshake, the mechanisms, and logging in again."""

import asyncio
import base64
import hashlib
import hmac
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_kit import BrokerKit
from varve.broker.request import Principal
from varve.broker.security.credentials import make_credential
from varve.broker.settings import SecuritySettings
from varve.foundation.errors import InvalidSetting
from varve.foundation.scram import ScramMechanism, credential_of, salted_password
from varve.kafka_server.authentication import ListenerSasl, ListenerSecurities, SaslSession
from varve.kafka_server.sasl_mechanisms import (
    AuthenticationFailed,
    LoginQueue,
    ScramExchange,
    TooManyLogins,
    hash_password,
)
from varve.kafka_server.settings import ServerSettings
from varve.wire import ErrorCode
from varve.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest

ALL = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
JAAS = {
    "plain.sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
    'user_alice="wonderland" user_bob="builder";'
}
JAAS_OF_LISTENER = {f"listener.name.sasl_plaintext.{name}": text for name, text in JAAS.items()}
REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED


@pytest.fixture
def kit() -> Iterator[BrokerKit]:
    with BrokerKit() as kit:
        yield kit


class _Client:
    """Talks to the authenticator of one connection."""

    def __init__(
        self, kit: BrokerKit, own: dict[str, str] | None = None, sasl: ListenerSasl | None = None
    ) -> None:
        settings = SecuritySettings(sasl_enabled_mechanisms=ALL)
        self.kit = kit
        sasl = sasl or ListenerSasl("SASL", settings, JAAS | (own or {}))
        self.server = SaslSession(sasl, kit.broker, kit.connect())

    def shake(self, mechanism: str, version: int = 1) -> Any:
        return self.kit.run(self.server.handle(version, SaslHandshakeRequest(mechanism)))

    def send(self, token: bytes, version: int = 2) -> Any:
        return self.kit.run(self.server.handle(version, SaslAuthenticateRequest(token)))

    def begin(self, token: bytes) -> "asyncio.Future[Any]":
        """Sends a token; the answer comes when the work of hashing is done."""
        handled = self.server.handle(2, SaslAuthenticateRequest(token))
        answer = asyncio.ensure_future(handled, loop=self.kit.loop)
        self.kit.settle()
        return answer

    def bare(self, token: bytes) -> bytes | None:
        return self.kit.run(self.server.handle_bare_token(token))

    def plain(self, user: str, password: str) -> Any:
        self.shake("PLAIN")
        return self.send(f"\0{user}\0{password}".encode())

    def scram(self, user: str, password: str, mechanism: ScramMechanism) -> Any:
        self.shake(mechanism.sasl_name)
        first = self.send(f"n,,n={user},r=abc".encode())
        assert first.error_code == 0
        return self.send(_final(f"n={user},r=abc", first.auth_bytes.decode(), password, mechanism))


def _final(first_bare: str, server_first: str, password: str, mechanism: ScramMechanism) -> bytes:
    """The client's own reading of RFC 5802."""
    said = dict(part.split("=", 1) for part in server_first.split(","))
    salted = hashlib.pbkdf2_hmac(
        mechanism.hash, password.encode(), base64.b64decode(said["s"]), int(said["i"])
    )
    without_proof = f"c=biws,r={said['r']}"
    key = hmac.digest(salted, b"Client Key", mechanism.hash)
    message = f"{first_bare},{server_first},{without_proof}".encode()
    signature = hmac.digest(hashlib.new(mechanism.hash, key).digest(), message, mechanism.hash)
    proof = bytes(a ^ b for a, b in zip(key, signature, strict=True))
    return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


def _add(kit: BrokerKit, user: str, password: str, mechanism: ScramMechanism) -> None:
    credential = make_credential(password, mechanism, iterations=4_096)
    kit.broker.credentials.alter([(user, mechanism, credential)])


def test_the_exchange_of_rfc_7677_is_answered_as_there(kit: BrokerKit) -> None:
    mechanism, salt = ScramMechanism.SCRAM_SHA_256, base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    salted = salted_password(mechanism, "pencil", salt=salt, iterations=4_096)
    credential = credential_of(mechanism, salted, salt=salt, iterations=4_096)
    kit.broker.credentials.alter([("user", mechanism, credential)])
    exchange = ScramExchange(mechanism, kit.broker.credentials, "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")
    first = kit.run(exchange.step(b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"))
    nonce = b"rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0"
    assert first == b"r=" + nonce + b",s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
    token = b"c=biws,r=" + nonce + b",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
    final = kit.run(exchange.step(token))
    assert final == b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
    assert (exchange.is_done, exchange.user) == (True, "user")


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_a_user_logs_in_with_scram(kit: BrokerKit, mechanism: ScramMechanism) -> None:
    _add(kit, "alice", "wonderland", mechanism)
    client = _Client(kit)
    answer = client.scram("alice", "wonderland", mechanism)
    assert (answer.error_code, answer.error_message) == (0, None)
    assert answer.auth_bytes.startswith(b"v=")
    assert client.server.is_done
    assert client.server.principal == Principal("User", "alice")
    assert client.server.expires_ms is None


def test_names_may_hold_commas_and_equals_signs(kit: BrokerKit) -> None:
    _add(kit, "a=b,c", "x", ScramMechanism.SCRAM_SHA_256)
    client = _Client(kit)
    assert client.scram("a=3Db=2Cc", "x", ScramMechanism.SCRAM_SHA_256).error_code == 0
    assert client.server.principal.name == "a=b,c"


def test_a_stranger_is_refused_as_somebody_with_a_wrong_password(kit: BrokerKit) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    _add(kit, "alice", "wonderland", mechanism)
    answers = []
    for user in ("alice", "mallory"):
        client = _Client(kit)
        answers.append(client.scram(user, "wrong", mechanism))
        assert client.server.has_failed
        assert not client.server.is_done
    assert answers[0] == answers[1]
    assert answers[0].error_code == REFUSED
    salts = []
    for _ in range(2):
        client = _Client(kit)
        client.shake(mechanism.sasl_name)
        salts.append(client.send(b"n,,n=mallory,r=x").auth_bytes.split(b",")[1:])
    assert salts[0] == salts[1]


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"nonsense",
        b"p=tls-unique,,n=alice,r=x",
        b"n,a=bob,n=alice,r=x",
        b"n,,n=ali=ce,r=x",
        b"n,,n=alice,r=",
        b"n,,n=,r=x",
        b"n,,m=future,n=alice,r=x",
        b"n,,n=alice,r=x,tokenauth=true",
        b"\xff\xfe",
    ],
)
def test_a_first_token_that_cannot_be_read_is_refused(kit: BrokerKit, token: bytes) -> None:
    client = _Client(kit)
    client.shake("SCRAM-SHA-256")
    assert client.send(token).error_code == REFUSED
    assert client.server.has_failed


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"c=biws", b"c=eSws"),
        (b",p=", b",q="),
        (b"r=abc", b"r=abz"),
        (b",p=", b",p=!"),
        (b"c=biws", b"c=!"),
    ],
)
def test_a_second_token_that_does_not_fit_is_refused(
    kit: BrokerKit, old: bytes, new: bytes
) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    _add(kit, "alice", "x", mechanism)
    client = _Client(kit)
    client.shake(mechanism.sasl_name)
    first = client.send(b"n,,n=alice,r=abc").auth_bytes.decode()
    token = _final("n=alice,r=abc", first, "x", mechanism)
    assert old in token
    assert client.send(token.replace(old, new, 1)).error_code == REFUSED


def test_a_proof_is_good_for_one_exchange_only(kit: BrokerKit) -> None:
    mechanism = ScramMechanism.SCRAM_SHA_256
    _add(kit, "alice", "x", mechanism)
    first_client, second_client = _Client(kit), _Client(kit)
    for client in (first_client, second_client):
        client.shake(mechanism.sasl_name)
    first = first_client.send(b"n,,n=alice,r=abc").auth_bytes.decode()
    second_client.send(b"n,,n=alice,r=abc")
    token = _final("n=alice,r=abc", first, "x", mechanism)
    assert second_client.send(token).error_code == REFUSED
    assert first_client.send(token).error_code == 0


def test_a_user_logs_in_with_plain(kit: BrokerKit) -> None:
    client = _Client(kit)
    assert client.plain("alice", "wonderland").error_code == 0
    assert client.server.principal == Principal("User", "alice")


@pytest.mark.parametrize(
    "token",
    [
        b"\0alice\0wrong",
        b"\0mallory\0wonderland",
        b"\0alice\0builder",
        b"bob\0alice\0wonderland",
        b"\0\0wonderland",
        b"\0alice\0",
        b"alice\0wonderland",
        b"\0alice\0wonderland\0",
        b"\xff\0\xff\0\xff",
        b"",
    ],
)
def test_plain_refuses_what_is_not_a_users_password(kit: BrokerKit, token: bytes) -> None:
    client = _Client(kit)
    client.shake("PLAIN")
    answer = client.send(token)
    assert answer.error_code == REFUSED
    assert "wonderland" not in answer.error_message
    assert client.server.has_failed


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """With the password of one user."""
    file = tmp_path / "users"
    file.write_text(f"carol={hash_password('one')}\n")
    return file


@pytest.fixture
def sasl(file: Path) -> ListenerSasl:
    settings = SecuritySettings(sasl_enabled_mechanisms=ALL, sasl_plain_users=str(file))
    return ListenerSasl("SASL", settings, JAAS)


def test_users_of_a_file_log_in_and_change_without_a_restart(
    kit: BrokerKit, file: Path, sasl: ListenerSasl
) -> None:
    clients = [_Client(kit, sasl=sasl) for _ in range(4)]
    assert clients[0].plain("carol", "one").error_code == 0
    assert clients[1].plain("alice", "wonderland").error_code == 0
    file.write_text(f"carol={hash_password('two')}\n")
    sasl.reload()
    assert clients[2].plain("carol", "one").error_code == REFUSED
    assert clients[3].plain("carol", "two").error_code == 0
    file.write_text("carol=clear\n")
    with pytest.raises(InvalidSetting):
        sasl.reload()


def test_many_who_log_in_with_plain_leave_the_pool_to_others(
    kit: BrokerKit, sasl: ListenerSasl
) -> None:
    kit.hold_work(work=True)
    clients = [_Client(kit, sasl=sasl) for _ in range(6)]
    for client in clients:
        client.shake("PLAIN")
    logins = [client.begin(b"\0carol\0one") for client in clients]
    assert kit.work.count == 2
    kit.release_work()
    assert [login.result().error_code for login in logins] == [0] * 6


def test_a_password_that_was_right_is_not_hashed_again(kit: BrokerKit, sasl: ListenerSasl) -> None:
    clients = [_Client(kit, sasl=sasl) for _ in range(3)]
    assert clients[0].plain("carol", "one").error_code == 0
    kit.hold_work(work=True)
    assert clients[1].plain("carol", "one").error_code == 0
    clients[2].shake("PLAIN")
    wrong = clients[2].begin(b"\0carol\0two")
    assert not wrong.done(), "a wrong password is hashed each time"
    kit.release_work()
    assert wrong.result().error_code == REFUSED


def test_logins_take_turns_by_the_address_of_their_client() -> None:
    async def scenario() -> list[str]:
        queue, all_wait, order = LoginQueue(1, waiting_max=9), asyncio.Event(), []

        async def log_in(host: str) -> None:
            async with queue.turn(host):
                order.append(host)
                await all_wait.wait()

        strangers = [asyncio.ensure_future(log_in("stranger")) for _ in range(5)]
        await asyncio.sleep(0)
        friend = asyncio.ensure_future(log_in("friend"))
        await asyncio.sleep(0)
        strangers.pop().cancel()
        all_wait.set()
        results = await asyncio.gather(*strangers, friend, return_exceptions=True)
        assert results == [None] * 5
        async with queue.turn("later"):
            return order

    assert asyncio.run(scenario()) == ["stranger", "stranger", "friend", "stranger", "stranger"]


def test_an_address_has_so_many_waiting_logins_and_no_more() -> None:
    async def scenario() -> None:
        queue, all_wait = LoginQueue(1, waiting_max=2), asyncio.Event()

        async def log_in(host: str) -> None:
            async with queue.turn(host):
                await all_wait.wait()

        hosts = ["2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8:0:1::1", "192.0.2.1"]
        waiting = [asyncio.ensure_future(log_in(host)) for host in hosts]
        await asyncio.sleep(0)
        with pytest.raises(TooManyLogins, match=r"varve\.sasl\.logins\.max\.per\.ip"):
            await log_in("2001:db8::ffff")
        all_wait.set()
        await asyncio.gather(*waiting)
        await log_in("2001:db8::ffff")

    asyncio.run(scenario())


def test_strangers_leave_a_turn_to_addresses_that_have_logged_in_before() -> None:
    async def scenario() -> list[str]:
        queue, all_wait, order = LoginQueue(3, waiting_max=9), asyncio.Event(), []
        queue.succeeded("friend")

        async def log_in(host: str) -> None:
            async with queue.turn(host):
                order.append(host)
                await all_wait.wait()

        hosts = [*(f"stranger {number}" for number in range(4)), *["friend"] * 3]
        waiting = [asyncio.ensure_future(log_in(host)) for host in hosts]
        await asyncio.sleep(0)
        started = list(order)
        all_wait.set()
        await asyncio.gather(*waiting)
        assert len(order) == 7
        return started

    assert asyncio.run(scenario()) == ["stranger 0", "stranger 1", "friend"]


def test_the_password_of_a_client_that_has_left_is_not_hashed(
    kit: BrokerKit, sasl: ListenerSasl
) -> None:
    kit.hold_work(work=True)
    clients = [_Client(kit, sasl=sasl) for _ in range(3)]
    for client in clients:
        client.shake("PLAIN")
    logins = [client.begin(b"\0carol\0one") for client in clients]
    clients[2].server._connection.is_closed = True
    kit.release_work()
    assert [login.result().error_code for login in logins[:2]] == [0, 0]
    assert isinstance(logins[2].exception(), TooManyLogins)


def test_a_mechanism_that_is_not_enabled_is_refused_with_those_that_are(kit: BrokerKit) -> None:
    client = _Client(kit, {"sasl.enabled.mechanisms": "SCRAM-SHA-512"})
    answer = client.shake("PLAIN")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM
    assert answer.mechanisms == ["SCRAM-SHA-512"]
    assert client.server.has_failed


def test_tokens_before_the_handshake_are_refused(kit: BrokerKit) -> None:
    client = _Client(kit)
    assert client.send(b"\0alice\0wonderland").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.server.has_failed
    assert client.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE


def test_a_second_handshake_in_the_middle_is_refused(kit: BrokerKit) -> None:
    client = _Client(kit)
    client.shake("SCRAM-SHA-256")
    assert client.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.send(b"\0alice\0wonderland").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert not client.server.is_done


def test_old_clients_send_tokens_without_headers(kit: BrokerKit) -> None:
    client = _Client(kit)
    client.shake("PLAIN", version=0)
    assert client.server.takes_bare_tokens
    assert client.bare(b"\0alice\0wonderland") == b""
    assert client.server.is_done
    assert not client.server.takes_bare_tokens
    client = _Client(kit)
    client.shake("SCRAM-SHA-256", version=0)
    assert client.bare(b"nonsense") == b"e=other-error"
    assert client.server.has_failed


def test_who_is_known_may_not_log_in_again_where_sessions_do_not_end(kit: BrokerKit) -> None:
    client = _Client(kit)
    client.plain("alice", "wonderland")
    assert client.shake("PLAIN").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.send(b"\0bob\0builder").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert client.server.is_done
    assert not client.server.has_failed
    assert client.server.principal.name == "alice"


def test_sessions_end_and_are_renewed_by_logging_in_again(kit: BrokerKit) -> None:
    client = _Client(kit, {"connections.max.reauth.ms": "60000"})
    answer = client.plain("alice", "wonderland")
    assert answer.session_lifetime_ms == 60_000
    assert client.server.expires_ms == kit.clock.now_ms() + 60_000
    kit.clock.advance(50_000)
    assert client.plain("alice", "wonderland").session_lifetime_ms == 60_000
    assert client.server.is_done
    assert client.server.expires_ms == kit.clock.now_ms() + 60_000


def test_a_mechanism_may_have_sessions_of_its_own(kit: BrokerKit) -> None:
    own = {"connections.max.reauth.ms": "60000", "plain.connections.max.reauth.ms": "5"}
    assert _Client(kit, own).plain("alice", "wonderland").session_lifetime_ms == 5


def test_nobody_becomes_somebody_else_by_logging_in_again(kit: BrokerKit) -> None:
    client = _Client(kit, {"connections.max.reauth.ms": "60000"})
    client.plain("alice", "wonderland")
    answer = client.plain("bob", "builder")
    assert answer.error_code == REFUSED
    assert "Cannot change principals" in answer.error_message
    assert client.server.has_failed
    assert client.server.principal.name == "alice"


def test_the_mechanism_stays_when_logging_in_again(kit: BrokerKit) -> None:
    _add(kit, "alice", "wonderland", ScramMechanism.SCRAM_SHA_256)
    client = _Client(kit, {"connections.max.reauth.ms": "60000"})
    client.plain("alice", "wonderland")
    answer = client.scram("alice", "wonderland", ScramMechanism.SCRAM_SHA_256)
    assert answer.error_code == REFUSED
    assert client.server.has_failed


@pytest.mark.parametrize(
    "own",
    [
        {"sasl.enabled.mechanisms": "GSSAPI"},
        {"sasl.enabled.mechanisms": ""},
        {"connections.max.reauth.ms": "soon"},
        {"plain.connections.max.reauth.ms": "-1"},
        {"plain.sasl.jaas.config": "nonsense"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(own: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting):
        ListenerSasl("SASL", SecuritySettings(), own)


def test_an_exchange_that_is_refused_cannot_go_on(kit: BrokerKit) -> None:
    exchange = ScramExchange(ScramMechanism.SCRAM_SHA_256, kit.broker.credentials, "nonce")
    kit.run(exchange.step(b"n,,n=alice,r=x"))
    with pytest.raises(AuthenticationFailed):
        kit.run(exchange.step(b"c=biws,r=xnonce,p=" + base64.b64encode(bytes(32))))
    assert not exchange.is_done


@pytest.mark.parametrize(
    ("mechanisms", "own", "is_told"),
    [
        (("PLAIN",), {}, True),
        (("SCRAM-SHA-512",), {}, True),
        (ALL, {}, False),  # alice has a credential
        (("PLAIN", "SCRAM-SHA-512"), JAAS_OF_LISTENER, False),
        (("SCRAM-SHA-512",), JAAS_OF_LISTENER, True),
    ],
)
def test_a_listener_at_which_nobody_can_log_in_is_told(
    kit: BrokerKit,
    caplog: pytest.LogCaptureFixture,
    mechanisms: tuple[str, ...],
    own: dict[str, str],
    is_told: bool,
) -> None:
    credential = make_credential("wonderland", ScramMechanism.SCRAM_SHA_256)
    kit.broker.credentials.alter([("alice", ScramMechanism.SCRAM_SHA_256, credential)])
    server = ServerSettings(listeners=("SASL_PLAINTEXT://127.0.0.1:0",))
    settings = SecuritySettings(sasl_enabled_mechanisms=mechanisms)
    ListenerSecurities(server.parsed_listeners(), settings, overrides=own).warn_if_no_users(
        kit.broker.credentials
    )
    told = [one for one in caplog.records if "has no users" in one.message]
    assert [getattr(one, "listener", "") for one in told] == ["SASL_PLAINTEXT"] * is_told
    assert all("varve user add" in one.message for one in told)
