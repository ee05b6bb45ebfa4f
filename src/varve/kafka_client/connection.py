"""Connections to one broker: SASL login, then requests and their responses in order.

Invariant  a response has the correlation id of its request; after a failure the connection is
           closed, and with it the idle ones to the same broker. A request is sent in the newest
           version that both sides know. With SCRAM the server proves that it knows the password
           too; a server that cannot is refused.
Threads    a connection belongs to one thread at a time; a pool to any.
"""

import base64
import binascii
import hmac
import secrets
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from struct import Struct
from typing import Final, TypeVar

from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    MalformedMessage,
    StoreDenied,
    Unavailable,
)
from varve.foundation.scram import (
    BY_SASL_NAME,
    ScramMechanism,
    credential_of,
    keyed,
    make_proof,
    salted_password,
)
from varve.kafka_client.address import MECHANISMS, PLAIN, ClusterAddress
from varve.wire.apis import APIS, ApiKey
from varve.wire.codec import decode, encode, skip_tags, write_request_header
from varve.wire.errors import ErrorCode
from varve.wire.messages.cluster import ApiVersionsRequest, ApiVersionsResponse
from varve.wire.messages.data import FetchRequest
from varve.wire.messages.security import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from varve.wire.schema import NO_ID, Message

R = TypeVar("R", bound=Message)

_CONNECTIONS_MAX: Final = 16
_SIZE: Final = Struct(">i")
_CORRELATION_END: Final = 4
_RESPONSE_BYTES_MAX: Final = 1 << 30
_VERSION_ENDS: Final = {
    ApiKey.FETCH: 13,
    ApiKey.OFFSET_FETCH: 10,
    ApiKey.PRODUCE: 12,
    ApiKey.ADD_PARTITIONS_TO_TXN: 4,
}
"""From these versions on topics are named by ids alone, partitions are added to a transaction
implicitly (KIP-890), or only brokers may send the request."""

_BEFORE_AUTHENTICATION: Final = (
    ApiVersionsResponse,
    SaslHandshakeResponse,
    SaslAuthenticateResponse,
)
"""Responses that a broker sends to unauthenticated clients too."""
_LOGIN_HINT: Final = (
    "; it may require TLS or SASL: set security.protocol to SSL, SASL_SSL or SASL_PLAINTEXT, for a "
    "login sasl.mechanism, sasl.username and sasl.password, and ssl.certificate.location where it "
    "requires a client certificate"
)
_VERIFY_REMEDY: Final = "set ssl.ca.location to the certificate of the authority that signed it"
_NAME_REMEDY: Final = (
    "name the broker as its certificate does, or set ssl.endpoint.identification.algorithm=none"
)
_VERIFY_REMEDIES: Final = {
    10: "have the broker's certificate renewed",
    62: _NAME_REMEDY,
    64: _NAME_REMEDY,
}
"""By OpenSSL's codes: expired, another host name, another address."""


class ConnectionPool:
    """Connections to one broker; each request has one to itself, at most `_CONNECTIONS_MAX`."""

    def __init__(self, address: ClusterAddress, host: str, port: int) -> None:
        self._address = address
        self._host = host
        self._port = port
        self._changed = threading.Condition()
        self._idle: list[BrokerConnection] = []  # guarded by _changed
        self._count = 0  # guarded by _changed
        self._is_closed = False  # guarded by _changed

    @contextmanager
    def connection(self) -> Iterator["BrokerConnection"]:
        """An idle connection or a new one; waits while `_CONNECTIONS_MAX` are in use."""
        connection = self._acquire()
        try:
            yield connection
        except BaseException:
            if connection.is_closed:
                # The broker restarted or closes idle connections: the others are of no use either.
                self._close_idle()
            self._release(connection)
            raise
        self._release(connection)

    def _acquire(self) -> "BrokerConnection":
        with self._changed:
            while not self._idle and self._count >= _CONNECTIONS_MAX:
                self._changed.wait()
            if self._idle:
                return self._idle.pop()
            self._count += 1
        try:
            return open_connection(self._address, self._host, self._port)
        except BaseException:
            self._decrement_count()
            raise

    def _release(self, connection: "BrokerConnection") -> None:
        with self._changed:
            if not connection.is_closed and not self._is_closed:
                self._idle.append(connection)
                self._changed.notify()
                return
        connection.close()
        self._decrement_count()

    def _decrement_count(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify()

    def _close_idle(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
            self._count -= len(idle)
            self._changed.notify_all()
        for connection in idle:
            connection.close()

    def close(self) -> None:
        """Closes idle connections now, and those in use when their request ends."""
        with self._changed:
            self._is_closed = True
        self._close_idle()


class BrokerConnection:
    """One socket; opened by `open_connection`."""

    def __init__(self, stream: socket.socket, name: str, client_id: str) -> None:
        self.name = name
        self._client_id = client_id
        self.is_closed = False
        self._stream = stream
        self._correlation_id = 0
        self._was_served = False
        """Whether a request was answered that may need authentication."""
        self._versions: dict[int, tuple[int, int]] = {}

    def close(self) -> None:
        self.is_closed = True
        self._stream.close()

    def learn_versions(self) -> None:
        """Requests the versions that the broker serves; it must be Kafka 2.8 or later."""
        request = ApiVersionsRequest("varve", "1")
        (response,) = self._exchange([request], ApiVersionsResponse, 3)
        if response.error_code:
            raise Unavailable(
                f"{self.name} does not serve ApiVersions 3: it must be Kafka 2.8 or later"
            )
        self._versions = {
            api.api_key: (api.min_version, api.max_version) for api in response.api_keys
        }

    def find_version(self, kind: type[Message], *, has_ids: bool = False) -> int | None:
        """The newest version of a request that both sides know; None where there is none.

        `has_ids` allows versions that name topics by their ids alone.
        """
        supported = APIS[kind.API_KEY].versions
        low, high = self._versions.get(kind.API_KEY, (0, -1))
        if not has_ids:
            high = min(high, _VERSION_ENDS.get(ApiKey(kind.API_KEY), high + 1) - 1)
        high = min(high, supported.last)
        return high if high >= max(low, supported.first) else None

    def send(self, request: Message, kind: type[R]) -> R:
        """The response to a request; raises Unavailable when the connection fails."""
        return self.send_all([request], kind)[0]

    def send_all(self, requests: Sequence[Message], kind: type[R]) -> list[R]:
        """The responses to requests of one type, which are all sent before a response is read.

        They must be few and small: responses are read only after the last request is sent.
        """
        version = self.find_version(type(requests[0]), has_ids=_has_ids(requests[0]))
        if version is None:
            raise InvalidRequest(
                f"{self.name} and this varve have no version of {type(requests[0]).__name__} in "
                "common"
            )
        return self._exchange(requests, kind, version)

    def _exchange(self, requests: Sequence[Message], kind: type[R], version: int) -> list[R]:
        first = self._correlation_id + 1
        try:
            for request in requests:
                self._send(request, version)
            frames = [self._receive() for _ in requests]
        except OSError as error:
            self.close()
            hint = "" if self._was_served or isinstance(error, TimeoutError) else _LOGIN_HINT
            raise Unavailable(
                f"{self.name}: {type(requests[0]).__name__}: {error}{hint}"
            ) from error
        self._was_served |= kind not in _BEFORE_AUTHENTICATION
        return [
            self._decode(frame, requests[0], kind, version, number)
            for number, frame in enumerate(frames, first)
        ]

    def _send(self, request: Message, version: int) -> None:
        self._correlation_id += 1
        is_flexible = version >= request.FLEXIBLE
        head = write_request_header(
            request.API_KEY, version, self._correlation_id, self._client_id, is_flexible=is_flexible
        )
        out = encode(request, version, head)
        self._stream.sendall(_SIZE.pack(len(out)))
        self._stream.sendall(out)

    def _decode(
        self, frame: memoryview, request: Message, kind: type[R], version: int, number: int
    ) -> R:
        try:
            if len(frame) < _CORRELATION_END or _SIZE.unpack_from(frame)[0] != number:
                raise MalformedMessage(f"the response is not that of request {number}")
            start = _CORRELATION_END
            if version >= request.FLEXIBLE and kind is not ApiVersionsResponse:
                start = skip_tags(frame, start)
            return decode(kind, version, frame, start)
        except MalformedMessage as error:
            self.close()
            raise Corrupt(f"{self.name}: {error}: is it a broker of Kafka's protocol?") from error

    def _receive(self) -> memoryview:
        (size,) = _SIZE.unpack(self._receive_exactly(_SIZE.size))
        if not 0 <= size <= _RESPONSE_BYTES_MAX:
            raise OSError(f"a response of {size} bytes, more than {_RESPONSE_BYTES_MAX}")
        return memoryview(self._receive_exactly(size))

    def _receive_exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view, filled = memoryview(data), 0
        while filled < size:
            count = self._stream.recv_into(view[filled:])
            if not count:
                raise OSError("the broker has closed the connection")
            filled += count
        return data

    def log_in(self, address: ClusterAddress) -> None:
        """Raises StoreDenied for a login that the broker refuses."""
        assert address.mechanism is not None
        offered = self.send(SaslHandshakeRequest(address.mechanism), SaslHandshakeResponse)
        if offered.error_code:
            raise StoreDenied(
                f"{self.name} has not enabled SASL mechanism {address.mechanism}, only "
                f"{', '.join(offered.mechanisms) or 'nothing'}: set sasl.mechanism"
            )
        log_in(address.mechanism, address.username, address.password, self)

    def exchange_token(self, token: bytes) -> bytes:
        """Sends a SASL token and returns the broker's; raises StoreDenied."""
        response = self.send(SaslAuthenticateRequest(token), SaslAuthenticateResponse)
        if response.error_code:
            reason = response.error_message or ErrorCode(response.error_code).name
            raise StoreDenied(
                f"{self.name} refuses the login: {reason:.300}; set sasl.username and "
                "sasl.password to those of one of its users"
            )
        return bytes(response.auth_bytes)


def _has_ids(request: Message) -> bool:
    """Whether all topics of a request are named by their ids too."""
    return isinstance(request, FetchRequest) and all(
        topic.topic_id != NO_ID for topic in request.topics
    )


def open_connection(address: ClusterAddress, host: str, port: int) -> BrokerConnection:
    """Connects, checks the certificate and logs in, as the address says."""
    name = f"{host}:{port}"
    try:
        stream = socket.create_connection((host, port), timeout=address.timeout_ms / 1000)
        try:
            stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if address.uses_tls:
                stream = _make_tls(address).wrap_socket(stream, server_hostname=host)
        except BaseException:
            stream.close()
            raise
    except ssl.SSLCertVerificationError as error:
        remedy = _VERIFY_REMEDIES.get(error.verify_code, _VERIFY_REMEDY)
        raise StoreDenied(f"{name}: {error.verify_message}: {remedy}") from error
    except OSError as error:
        raise Unavailable(
            f"no broker answers at {name} ({error.strerror or error}); start one with "
            "`varve serve`, or correct the address"
        ) from error
    connection = BrokerConnection(stream, name, address.client_id)
    try:
        connection.learn_versions()
        if address.mechanism is not None:
            connection.log_in(address)
    except BaseException:
        connection.close()
        raise
    return connection


def _make_tls(address: ClusterAddress) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=address.ca_path or None)
        if address.certificate_path:
            context.load_cert_chain(
                address.certificate_path, address.key_path or None, address.key_password or None
            )
    except (OSError, ssl.SSLError) as error:
        raise InvalidRequest(
            f"the files of ssl.ca.location, ssl.certificate.location and ssl.key.location cannot "
            f"be used: {error}"
        ) from error
    context.check_hostname = address.checks_name
    return context


_ITERATIONS_MAX: Final = 1 << 20
"""Bounds the time that a server can make a login take."""
_NO_BINDING: Final = "n,,"
"""The GS2 header of a client without channel binding (RFC 5802)."""


def log_in(mechanism: str, username: str, password: str, connection: BrokerConnection) -> None:
    """Raises StoreDenied for a server that does not prove itself or sends a malformed token."""
    if mechanism == PLAIN:
        connection.exchange_token(f"\0{username}\0{password}".encode())
        return
    if mechanism not in BY_SASL_NAME:
        raise InvalidRequest(
            f"SASL mechanism {mechanism!r:.40} is not supported: use {', '.join(MECHANISMS)}"
        )
    _log_in_by_scram(BY_SASL_NAME[mechanism], username, password, connection)


def _log_in_by_scram(
    mechanism: ScramMechanism, username: str, password: str, connection: BrokerConnection
) -> None:
    nonce = secrets.token_urlsafe(24)
    name = username.replace("=", "=3D").replace(",", "=2C")
    first = f"n={name},r={nonce}"
    challenge = connection.exchange_token(f"{_NO_BINDING}{first}".encode()).decode(errors="replace")
    salt, iterations, joined_nonce = _read_challenge(challenge, nonce)
    salted = salted_password(mechanism, password, salt=salt, iterations=iterations)
    binding = base64.b64encode(_NO_BINDING.encode()).decode()
    final = f"c={binding},r={joined_nonce}"
    messages = f"{first},{challenge},{final}".encode()
    proof = base64.b64encode(make_proof(mechanism, salted, messages)).decode()
    response = connection.exchange_token(f"{final},p={proof}".encode())
    credential = credential_of(mechanism, salted, salt=salt, iterations=iterations)
    signature = keyed(mechanism, credential.server_key, messages)
    expected = b"v=" + base64.b64encode(signature)
    if not hmac.compare_digest(response.partition(b",")[0], expected):
        raise StoreDenied(
            f"the server does not prove that it knows the password of {username!r:.100}: it is not "
            "the intended server, or the password is wrong"
        )


def _read_challenge(text: str, nonce: str) -> tuple[bytes, int, str]:
    """Salt, iterations and the joined nonce of client and server."""
    try:
        fields = dict(field.split("=", 1) for field in text.split(","))
        salt = base64.b64decode(fields["s"], validate=True)
        iterations, joined_nonce = int(fields["i"]), fields["r"]
    except (ValueError, KeyError, binascii.Error) as error:
        raise StoreDenied(
            f"the server's challenge {text!r:.100} is not a SCRAM challenge"
        ) from error
    if not joined_nonce.startswith(nonce) or not 1 <= iterations <= _ITERATIONS_MAX:
        raise StoreDenied(
            f"the server's challenge {text!r:.100} does not match this login: its nonce or "
            f"its iterations are invalid (1 to {_ITERATIONS_MAX})"
        )
    return salt, iterations, joined_nonce
