"""The answer to a request whose handling ended with an error that nobody planned."""

from varve.wire import Api, ErrorCode, Message
from varve.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from varve.wire.schema import wire_fields

_CODE = ErrorCode.UNKNOWN_SERVER_ERROR


def failed_response(api: Api, request: Message, version: int) -> Message | None:
    """UNKNOWN_SERVER_ERROR as the API tells it; None where its answer has no room for that."""
    if isinstance(request, ProduceRequest):
        return _failed_produce(request)
    for name, place, _ in wire_fields(api.response):
        if name == "error_code" and version in place.versions:
            answer = api.response()
            answer.error_code = _CODE  # type: ignore[attr-defined]  # it was found among its fields
            return answer
    return None


def _failed_produce(request: ProduceRequest) -> ProduceResponse:
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    PartitionProduceResponse(index=one.index, error_code=_CODE, base_offset=-1)
                    for one in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )
