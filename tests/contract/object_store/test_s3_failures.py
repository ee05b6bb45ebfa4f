"""What becomes of requests to S3 that go wrong on the way, at the server, or half."""

import random
import threading
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.http_stub import RESET, Answer, Asked, HttpStub, http_stub
from varve.foundation.errors import (
    ObjectExists,
    StoreDenied,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
)
from varve.object_store import (
    ObjectStore,
    RetryingObjectStore,
    RetryPolicy,
    S3ObjectStore,
    S3Settings,
)

MEGABYTE = 1 << 20
WRITTEN = Answer(200, {"etag": '"1"'})
MODIFIED = "Mon, 16 Nov 2026 00:00:00 GMT"


CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("a"),
    "get range": lambda store: store.get_range("a", 0, 100),
    "put": lambda store: store.put("a", b"1"),
    "create": lambda store: store.create("a", b"1"),
    "head": lambda store: store.head("a"),
    "list": lambda store: list(store.list("a")),
    "list directories": lambda store: store.list_directories("a"),
    "delete": lambda store: store.delete(["a"]),
}


def _store(stub: HttpStub, request_timeout_ms: int = 5_000) -> S3ObjectStore:
    settings = S3Settings(
        endpoint=stub.endpoint,
        access_key_id="KEYID",
        secret_access_key="TOPSECRET",
        region="us-east-1",
        allow_http=True,
        part_bytes=5 * MEGABYTE,
        request_timeout_ms=request_timeout_ms,
    )
    return S3ObjectStore("bucket", settings=settings)


def _retrying(stub: HttpStub) -> ObjectStore:
    return RetryingObjectStore(
        _store(stub), policy=RetryPolicy(), wait=lambda _: None, source=random.Random(1)
    )


def _error(status: int, code: str) -> Answer:
    body = f"<Error><Code>{code}</Code><Message>because</Message></Error>" if code else ""
    return Answer(status, {}, body.encode())


# Conditional writes


@pytest.mark.parametrize("code", ["ConditionalRequestConflict", "OperationAborted", "Unknown", ""])
def test_a_conflict_decides_nothing_whatever_it_is_called(code: str) -> None:
    with http_stub(lambda asked: _error(409, code)) as stub:
        for name in ("create", "put"):
            with pytest.raises(StoreUnavailable, match="another write was in progress"):
                CALLS[name](_store(stub))


def test_a_create_that_met_a_conflict_is_repeated_until_it_is_decided() -> None:
    answers = [_error(409, "ConditionalRequestConflict"), _error(409, ""), WRITTEN]
    with http_stub(lambda asked: answers.pop(0)) as stub:
        assert _retrying(stub).create("a", b"1").size == 1
        assert [asked.headers["if-none-match"] for asked in stub.asked] == ["*"] * 3


def test_a_create_whose_answer_was_lost_knows_its_own_bytes() -> None:
    held: list[bytes] = []

    def answer(asked: Asked) -> Answer:
        if asked.method == "PUT":
            if held:
                return _error(412, "PreconditionFailed")
            held.append(asked.body)
            return RESET
        headers = {"etag": '"1"', "last-modified": MODIFIED}
        if "range" not in asked.headers:
            return Answer(200, headers, held[0])
        ranged = {**headers, "content-range": f"bytes 0-{len(held[0]) - 1}/{len(held[0])}"}
        return Answer(206, ranged, held[0])

    with http_stub(answer) as stub:
        assert _retrying(stub).create("a", b"mine").size == 4
        with pytest.raises(ObjectExists):
            _retrying(stub).create("a", b"other")
    assert held == [b"mine"]


@pytest.mark.parametrize("passing", [_error(409, "ConditionalRequestConflict"),
                                     _error(503, "SlowDown"), RESET])  # fmt: skip
def test_the_check_at_open_outlasts_a_passing_failure(passing: Answer) -> None:
    answers = [passing, _error(412, "PreconditionFailed")]
    with http_stub(lambda asked: answers.pop(0)) as stub:
        _store(stub).checked()
        assert len(stub.asked) == 2


# Refusals


def test_a_head_that_is_refused_without_a_word_names_both_usual_reasons() -> None:
    denied = pytest.raises(StoreDenied, match=r"credentials.*region")
    with http_stub(lambda asked: Answer(400, {})) as stub, denied:
        _store(stub).head("a")


@pytest.mark.parametrize(
    ("code", "kind"), [("AccessDenied", StoreDenied), ("SlowDown", StoreThrottled),
                       ("InternalError", StoreUnavailable)],
)  # fmt: skip
def test_one_key_that_a_bulk_delete_left_is_an_error(code: str, kind: type[StoreError]) -> None:
    body = (
        "<DeleteResult><Deleted><Key>a</Key></Deleted>"
        f"<Error><Key>b</Key><Code>{code}</Code><Message>no</Message></Error></DeleteResult>"
    )
    with http_stub(lambda asked: Answer(200, {}, body.encode())) as stub:
        with pytest.raises(StoreError) as caught:
            _store(stub).delete(["a", "b"])
        assert type(caught.value) is kind


# The way


@pytest.mark.parametrize("name", CALLS)
def test_a_reset_connection_is_unavailable_and_said_to_be_one(name: str) -> None:
    with http_stub(lambda asked: RESET) as stub, pytest.raises(StoreUnavailable, match="reset"):
        CALLS[name](_store(stub))


@pytest.mark.parametrize("name", ["get", "get range", "list", "list directories", "delete"])
def test_half_an_answer_is_no_answer(name: str) -> None:
    headers = {"etag": '"1"', "last-modified": MODIFIED}

    def answer(asked: Asked) -> Answer:
        if "range" in asked.headers:
            ranged = {**headers, "content-range": "bytes 0-99/100"}
            return Answer(206, ranged, bytes(100), cut_after=50)
        return Answer(200, headers, bytes(100), cut_after=50)

    with http_stub(answer) as stub, pytest.raises(StoreUnavailable):
        CALLS[name](_store(stub))


def test_a_refused_connection_is_named() -> None:
    with http_stub(lambda asked: RESET) as stub:
        store = _store(stub)
    for call in CALLS.values():
        with pytest.raises(StoreUnavailable, match=r"Connection refused.*check endpoint"):
            call(store)


def test_an_answer_that_does_not_come_is_cut_off() -> None:
    release = threading.Event()

    def answer(asked: Asked) -> Answer:
        release.wait(20)
        return Answer(200, {})

    with http_stub(answer) as stub:
        try:
            with pytest.raises(StoreUnavailable, match="no answer in time"):
                _store(stub, request_timeout_ms=200).get("a")
        finally:
            release.set()


# Uploads in parts


class Upload:
    """Answers as a server does to an upload in parts, with one kind of request going wrong."""

    def __init__(self, **wrong: Answer) -> None:
        self.wrong = wrong

    def __call__(self, asked: Asked) -> Answer:
        match asked.method:
            case "POST" if asked.path.endswith("uploads="):
                name, body = "begin", b"<R><UploadId>U1</UploadId></R>"
            case "PUT":
                name, body = "part", b""
            case "POST":
                name, body = "complete", b'<R><ETag>"1"</ETag></R>'
            case _:
                name, body = "abort", b""
        return self.wrong.get(name, Answer(200, {"etag": '"1"'}, body))


def _upload(stub: HttpStub) -> None:
    parts = [bytes(6 * MEGABYTE), bytes(6 * MEGABYTE)]
    _store(stub).put_parts("a", parts, size=12 * MEGABYTE)


def _aborts(stub: HttpStub) -> list[str]:
    return [asked.path for asked in stub.asked if asked.method == "DELETE"]


def test_an_upload_that_succeeds_is_not_aborted() -> None:
    with http_stub(Upload()) as stub:
        _upload(stub)
        assert _aborts(stub) == []


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        ({"part": _error(400, "ExpiredToken")}, StoreDenied),
        ({"part": _error(403, "AccessDenied")}, StoreDenied),
        ({"complete": _error(404, "NoSuchUpload")}, StoreUnavailable),
        ({"complete": Answer(200, {}, b"")}, StoreUnavailable),
    ],
)
def test_an_upload_that_fails_is_aborted(wrong: dict[str, Answer], kind: type[StoreError]) -> None:
    with http_stub(Upload(**wrong)) as stub:
        with pytest.raises(kind):
            _upload(stub)
        assert _aborts(stub) == ["/bucket/a?uploadId=U1"]


def test_a_completion_that_fails_behind_a_200_is_no_success() -> None:
    with http_stub(Upload(complete=_error(200, "InternalError"))) as stub:
        with pytest.raises(StoreUnavailable, match="InternalError"):
            _upload(stub)
        assert _aborts(stub) == ["/bucket/a?uploadId=U1"]


def test_an_abort_that_is_denied_is_not_taken_for_the_upload() -> None:
    answers = Upload(part=_error(400, "IncompleteBody"), abort=_error(403, "AccessDenied"))
    with http_stub(answers) as stub, pytest.raises(StoreUnavailable, match="abort uploads"):
        _upload(stub)


def test_credentials_that_expire_during_an_upload_are_denied() -> None:
    expired = _error(400, "ExpiredToken")
    answers = Upload(part=expired, abort=expired)
    with http_stub(answers) as stub, pytest.raises(StoreDenied, match="renew the session token"):
        _upload(stub)


# Lists


def test_a_list_that_is_throttled_goes_on_behind_the_last_key() -> None:
    failures = [_error(503, "SlowDown"), RESET, _error(503, "SlowDown")]

    def answer(asked: Asked) -> Answer:
        query = parse_qs(urlsplit(asked.path).query)
        start = query.get("start-after", query.get("continuation-token", [""]))[0]
        if start and failures:
            return failures.pop()
        keys = [key for key in (f"a/{number}" for number in range(6)) if key > start]
        return Answer(200, {}, _list_page(keys[:2], keys[1] if len(keys) > 2 else ""))

    with http_stub(answer) as stub:
        found = [info.key for info in _retrying(stub).list("a")]
    assert found == [f"a/{number}" for number in range(6)]
    assert failures == []


def _list_page(keys: list[str], token: str) -> bytes:
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>1</ETag>"
        "<LastModified>2026-11-16T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    more = f"<NextContinuationToken>{token}</NextContinuationToken>" if token else ""
    return f"<ListBucketResult>{contents}{more}</ListBucketResult>".encode()
