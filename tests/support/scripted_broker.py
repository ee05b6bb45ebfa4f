"""A broker on loopback that answers each API with what a test says.

with ScriptedBroker({ApiKey.FETCH: lambda request: FetchResponse(throttle_time_ms=10)}) as broker:
    with broker.open_client() as client: ...
"""

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from struct import Struct
from typing import Any, Final, Self

from varve.kafka_client import ClusterAddress, KafkaClient
from varve.wire import (
    APIS,
    ApiKey,
    Message,
    decode,
    encode,
    read_request_header,
    skip_tags,
    write_response_header,
)
from varve.wire.messages.cluster import (
    ApiVersion,
    ApiVersionsResponse,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

_SIZE: Final = Struct(">i")
NODE_ID: Final = 1

Answer = Callable[[Any], Message]


class ScriptedBroker:
    """Tells of one topic `t` with `partition_count` partitions, unless METADATA is scripted."""

    def __init__(self, answers: Mapping[ApiKey, Answer], *, partition_count: int = 1) -> None:
        self._answers = {
            ApiKey.API_VERSIONS: lambda _: ApiVersionsResponse(
                api_keys=[
                    ApiVersion(int(one.key), one.versions.first, one.versions.last)
                    for one in APIS.values()
                ]
            ),
            ApiKey.METADATA: lambda _: self.metadata(),
            **answers,
        }
        self._partition_count = partition_count
        self.requests: list[Message] = []
        self.client_ids: set[str | None] = set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def script(self, key: ApiKey, answer: Answer) -> None:
        self._answers[key] = answer

    def metadata(self) -> MetadataResponse:
        partitions = [
            MetadataResponsePartition(partition_index=number, leader_id=NODE_ID)
            for number in range(self._partition_count)
        ]
        return MetadataResponse(
            brokers=[MetadataResponseBroker(NODE_ID, "127.0.0.1", self.port)],
            controller_id=NODE_ID,
            topics=[MetadataResponseTopic(name="t", partitions=partitions)],
        )

    @contextmanager
    def open_client(self, *, timeout_ms: int = 300) -> Iterator[KafkaClient]:
        hosts = (("127.0.0.1", self.port),)
        address = ClusterAddress(hosts=hosts, timeout_ms=timeout_ms, client_id="varve-test")
        client = KafkaClient(address, threading.Event().wait)
        yield client
        client.close()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                self._open.append(client)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with suppress(OSError), client, client.makefile("rb") as stream:
            while head := stream.read(_SIZE.size):
                frame = memoryview(stream.read(_SIZE.unpack(head)[0]))
                out = self._answer(frame)
                client.sendall(_SIZE.pack(len(out)) + out)

    def _answer(self, frame: memoryview) -> bytearray:
        header = read_request_header(frame)
        api = APIS[header.api_key]
        is_flexible = api.is_flexible(header.version)
        start = skip_tags(frame, header.end) if is_flexible else header.end
        request = decode(api.request, header.version, frame, start)
        self.requests.append(request)
        self.client_ids.add(header.client_id)
        answer = self._answers.get(api.key, lambda _: api.response())
        out = write_response_header(api.key, header.correlation_id, is_flexible=is_flexible)
        return encode(answer(request), header.version, out)
