"""Messages of every API and version are the bytes that kio writes, and read as it reads them."""

import io
from typing import Any

import pytest
from kio.index import load_payload_module
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from tests.support.random_messages import MessageMaker
from varve.wire import APIS, Api, decode, encode
from varve.wire.schema import Message

_SEEDS = 3


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.key.name.lower())
def test_bytes_are_those_of_kio(api: Api) -> None:
    for version in range(api.versions.first, api.versions.last + 1):
        _compare(api.request, EntityType.request, int(api.key), version)
        _compare(api.response, EntityType.response, int(api.key), version)


def _compare(kind: type[Message], type: EntityType, key: int, version: int) -> None:
    theirs: Any = _load(key, version, type)
    read, write = entity_reader(theirs), entity_writer(theirs)
    for seed in range(_SEEDS):
        message = MessageMaker(seed).make(kind, version)
        data = bytes(encode(message, version))
        found = read(data, 0)[0]
        out = io.BytesIO()
        write(out, found)
        assert out.getvalue() == data, (kind, version, seed)
        assert decode(kind, version, data) == message, (kind, version, seed)


def _load(key: int, version: int, type: EntityType) -> Any:
    module = load_payload_module(key, version, type)  # type: ignore[arg-type]  # one of the two
    name = next(
        name
        for name in vars(module)
        if name.endswith("Request" if type is EntityType.request else "Response")
        and getattr(vars(module)[name], "__type__", None) is type
    )
    return vars(module)[name]
