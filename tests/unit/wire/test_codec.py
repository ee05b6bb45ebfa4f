"""What the codec does beside fields in their places: tags, nulls, defaults, refusals."""

from pathlib import Path
from uuid import UUID

import pytest

from varve.foundation.errors import MalformedMessage
from varve.wire import (
    APIS,
    NO_ID,
    ApiKey,
    decode,
    encode,
    read_request_header,
    skip_tags,
    write_request_header,
    write_response_header,
)
from varve.wire.compiler import read_uvarint
from varve.wire.messages.cluster import ApiVersionsRequest, MetadataRequest, MetadataRequestTopic
from varve.wire.messages.data import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ProduceRequest,
    TopicProduceData,
)


def test_tags_that_nobody_knows_are_passed_over() -> None:
    message = ApiVersionsRequest(client_software_name="a", client_software_version="b")
    data = encode(message, 3)
    assert data[-1] == 0, "no tags"
    data[-1:] = b"\x02\x05\x03abc\xc8\x01\x00"
    assert decode(ApiVersionsRequest, 3, data) == message


def encode_with_tags(*tags: tuple[int, bytes]) -> bytearray:
    """A FetchRequest of version 15 whose tagged fields are replaced by these."""
    data = encode(FetchRequest(), 15)
    assert data[-1] == 0, "no tags"
    data[-1:] = bytes([len(tags)])
    for tag, value in tags:
        data += bytes([tag, len(value)]) + value
    return data


REPLICA_STATE = (1, b"\x00\x00\x00\x07" + bytes(8) + b"\x00")


def test_a_tagged_field_is_read_from_its_own_bytes() -> None:
    decoded = decode(FetchRequest, 15, encode_with_tags((0, b"\x03ab"), REPLICA_STATE))
    assert (decoded.cluster_id, decoded.replica_state.replica_id) == ("ab", 7)


@pytest.mark.parametrize("value", [b"\x04ab", b"\xff\x7f"], ids=["text", "length"])
def test_a_tagged_field_that_is_longer_than_its_size_is_refused(value: bytes) -> None:
    """A field that was read to the end of the request could take all of it, for each tag again."""
    with pytest.raises(MalformedMessage, match="FetchRequest version 15"):
        decode(FetchRequest, 15, encode_with_tags((0, value), REPLICA_STATE))


def test_a_tagged_field_that_is_shorter_than_its_size_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="cluster_id ends 1 bytes before"):
        decode(FetchRequest, 15, encode_with_tags((0, b"\x02ab")))


@pytest.mark.parametrize("tags", [(0, 0), (9, 9), (9, 2)], ids=str)
def test_tags_that_do_not_ascend_are_refused(tags: tuple[int, int]) -> None:
    with pytest.raises(MalformedMessage, match="tags must ascend"):
        decode(FetchRequest, 15, encode_with_tags(*((tag, b"\x01") for tag in tags)))


def test_a_field_that_a_version_lacks_has_its_default() -> None:
    given = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=UUID(int=5), name="t")],
        allow_auto_topic_creation=False,
    )
    found = decode(MetadataRequest, 1, encode(given, 1))
    assert found.topics == [MetadataRequestTopic(topic_id=NO_ID, name="t")]
    assert found.allow_auto_topic_creation is True


def test_null_where_there_may_be_none_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="name is null"):
        decode(ProduceRequest, 3, b"\xff\xff\x00\x01\x00\x00\x00\x05\x00\x00\x00\x01\xff\xff")


def test_what_must_not_be_none_is_not_written() -> None:
    topic = TopicProduceData(name=None)  # type: ignore[arg-type]  # a slip of the caller's
    with pytest.raises(ValueError, match="name of TopicProduceData is None"):
        encode(ProduceRequest(topic_data=[topic]), 3)


def test_records_are_a_slice_of_what_was_received() -> None:
    request = b"\xff\xff\x00\x01\x00\x00\x00\x05\x00\x00\x00\x01\x00\x01t\x00\x00\x00\x01"
    data = bytearray(request + b"\x00\x00\x00\x07\x00\x00\x00\x03abc")
    found = decode(ProduceRequest, 3, data).topic_data[0].partition_data[0]
    assert found.index == 7
    assert found.records is not None
    data[-3:] = b"xyz"
    assert bytes(found.records) == b"xyz"


def test_a_variable_length_number_has_at_most_32_bits() -> None:
    assert read_uvarint(memoryview(b"\xff\xff\xff\xff\x0f"), 0) == (0xFFFF_FFFF, 5)
    for data in (b"\x80\x80\x80\x80\x10", b"\xff" * 5 + b"\x00"):
        with pytest.raises(MalformedMessage, match="exceeds 32 bits"):
            read_uvarint(memoryview(data), 0)


def test_what_follows_a_message_is_left_alone() -> None:
    data = encode(FetchRequest(), 12) + b"more"
    assert decode(FetchRequest, 12, data) == FetchRequest()


def test_a_message_that_ends_too_early_is_told_by_name() -> None:
    whole = encode(FetchResponse(), 17)
    for end in range(len(whole)):
        with pytest.raises(MalformedMessage, match="FetchResponse version 17"):
            decode(FetchResponse, 17, whole[:end])


@pytest.mark.parametrize("is_flexible", [False, True])
def test_a_request_header_comes_back(is_flexible: bool) -> None:
    data = write_request_header(3, 12, 77, "client-ü", is_flexible=is_flexible)
    header = read_request_header(memoryview(data + b"body"))
    assert header[:4] == (3, 12, 77, "client-ü")
    end = skip_tags(memoryview(data), header.end) if is_flexible else header.end
    assert end == len(data)


def test_the_answer_to_api_versions_has_the_old_header() -> None:
    assert write_response_header(ApiKey.API_VERSIONS, 5, is_flexible=True) == b"\0\0\0\5"
    assert write_response_header(ApiKey.METADATA, 5, is_flexible=True) == b"\0\0\0\5\0"


def test_produce_is_told_from_zero_on() -> None:
    api = APIS[ApiKey.PRODUCE]
    assert (api.first_advertised, api.versions.first) == (0, 3)
    assert all(
        one.first_advertised == one.versions.first for one in APIS.values() if one is not api
    )


def test_messages_are_equal_when_their_classes_and_all_fields_are() -> None:
    one, same, other = (FetchPartition(partition=n, fetch_offset=5) for n in (1, 1, 2))
    assert one == same
    assert one != other
    strangers: list[object] = [FetchTopic(), 1]
    assert one not in strangers
    assert repr(one).startswith("FetchPartition(partition=1, current_leader_epoch=-1, fetch_of")


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "compatibility.md"


def test_the_page_has_a_row_for_every_request_and_no_other() -> None:
    _, table = PAGE.read_text().split("| Key | Request | Versions |\n| --- | --- | --- |\n")
    wanted = [
        f"| {int(api.key)} | {api.request.__name__.removesuffix('Request')} "
        f"| {api.first_advertised}-{api.versions.last} |"
        for api in APIS.values()
    ]
    assert table.partition("\n\n")[0].splitlines() == wanted
