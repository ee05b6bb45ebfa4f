"""What S3 servers do, and what varve says when they do not."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.http_stub import RESET, Answer, Asked, HttpStub, http_stub
from tests.support.s3_server import BUCKET, S3Server
from varve.foundation.errors import (
    BucketNotFound,
    InvalidRequest,
    InvalidSetting,
    ObjectNotFound,
    StoreDenied,
    StoreError,
    StoreThrottled,
    StoreUnavailable,
    StoreUnsupported,
)
from varve.foundation.settings import GivenValue
from varve.object_store import (
    S3ObjectStore,
    S3Settings,
    open_lazily,
    open_object_store,
)

MEGABYTE = 1 << 20


def _stub_settings(stub: HttpStub) -> S3Settings:
    return S3Settings(
        endpoint=stub.endpoint,
        access_key_id="KEYID",
        secret_access_key="TOPSECRET",
        region="us-east-1",
        allow_http=True,
    )


def _lazy_settings(stub: HttpStub) -> dict[str, GivenValue]:
    return {
        "endpoint": stub.endpoint,
        "allow.http": True,
        "access.key.id": "KEYID",
        "secret.access.key": "TOPSECRET",
    }


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode()


def test_an_upload_that_broke_off_is_aborted(s3: S3Server) -> None:
    store = open_object_store(f"s3://{BUCKET}/{secrets.token_hex(8)}", s3.settings)

    def parts() -> Iterator[bytes]:
        yield bytes(20 * MEGABYTE)
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        store.put_parts("large", parts(), size=30 * MEGABYTE)
    assert s3.unfinished_uploads() == 0


def test_prefixes_are_apart(s3: S3Server) -> None:
    place = secrets.token_hex(8)
    outer = open_object_store(f"s3://{BUCKET}/{place}", s3.settings)
    inner = open_object_store(f"s3://{BUCKET}/{place}/inner/", s3.settings)
    inner.put("a", b"1")
    outer.put("b", b"2")
    assert inner.name == f"s3://{BUCKET}/{place}/inner"
    assert [info.key for info in inner.list("")] == ["a"]
    assert [info.key for info in outer.list("")] == ["b", "inner/a"]
    assert outer.get("inner/a") == b"1"


def test_the_mark_of_the_check_is_not_listed(s3: S3Server) -> None:
    url = f"s3://{BUCKET}/{secrets.token_hex(8)}"
    for _ in range(2):
        store = open_object_store(url, s3.settings)
        assert list(store.list("")) == []
        assert store.list_directories("") == []


def test_a_missing_bucket_has_its_own_error(s3: S3Server) -> None:
    settings = {**s3.settings, "conditional.put.check": False}
    store = open_object_store("s3://no-such-bucket/x", settings)
    with pytest.raises(BucketNotFound, match=r"no-such-bucket.*create the bucket"):
        store.put("a", b"1")
    with pytest.raises(BucketNotFound):
        store.get("a")
    with pytest.raises(BucketNotFound):
        list(store.list(""))
    with pytest.raises(BucketNotFound):
        open_object_store("s3://no-such-bucket/x", s3.settings)


def test_a_server_that_ignores_the_condition_is_refused_at_open() -> None:
    with http_stub(lambda asked: Answer(200, {"etag": '"1"'})) as stub:
        store = S3ObjectStore("bucket", settings=_stub_settings(stub))
        with pytest.raises(
            StoreUnsupported, match=r"If-None-Match.*docs/reference/object-stores\.md"
        ):
            store.checked()
        assert [asked.headers["if-none-match"] for asked in stub.asked] == ["*", "*"]


def test_a_server_that_does_not_know_the_condition_is_refused_at_open() -> None:
    with http_stub(lambda asked: Answer(501, {}, _error("NotImplemented"))) as stub:
        store = S3ObjectStore("bucket", settings=_stub_settings(stub))
        with pytest.raises(StoreUnsupported, match="NotImplemented"):
            store.checked()


def test_the_check_costs_one_request_once_the_mark_is_there() -> None:
    with http_stub(lambda asked: Answer(412, {}, _error("PreconditionFailed"))) as stub:
        S3ObjectStore("bucket", settings=_stub_settings(stub)).checked()
        assert len(stub.asked) == 1


def test_a_lazy_one_is_checked_by_its_first_request_and_again_while_the_server_is_down() -> None:
    answers = [RESET, Answer(503, {}, _error("InternalError"))]
    checked = Answer(412, {}, _error("PreconditionFailed"))

    def answer(asked: Asked) -> Answer:
        if "if-none-match" in asked.headers:
            return answers.pop(0) if answers else checked
        return Answer(200, {"etag": '"1"'})

    with http_stub(answer) as stub:
        store = open_lazily("s3://bucket", _lazy_settings(stub))
        assert stub.asked == []
        for asked in (1, 2):
            with pytest.raises(StoreUnavailable, match=r"s3://bucket"):
                store.put("a", b"1")
            assert len(stub.asked) == asked
        for _ in range(2):
            store.put("a", b"1")
        assert [one.method for one in stub.asked] == ["PUT"] * 5


def test_a_lazy_one_is_refused_where_the_server_ignores_the_condition() -> None:
    with http_stub(lambda asked: Answer(200, {"etag": '"1"'})) as stub:
        store = open_lazily("s3://bucket", _lazy_settings(stub))
        for _ in range(2):
            with pytest.raises(StoreUnsupported, match="If-None-Match"):
                store.put("a", b"1")
        assert {asked.path for asked in stub.asked} == {"/bucket/.varve-conditional-put"}


STATUSES: list[tuple[int, str, type[StoreError], str]] = [
    (403, "AccessDenied", StoreDenied, "credentials"),
    (403, "SignatureDoesNotMatch", StoreDenied, "credentials"),
    (403, "RequestTimeTooSkewed", StoreDenied, "clock"),
    (401, "Unauthorized", StoreDenied, "credentials"),
    (400, "ExpiredToken", StoreDenied, "renew"),
    (400, "AuthorizationHeaderMalformed", StoreDenied, "region"),
    (301, "", StoreDenied, "region"),
    (400, "RequestTimeout", StoreUnavailable, "try again"),
    (400, "InvalidArgument", InvalidRequest, "InvalidArgument"),
    (404, "NoSuchKey", ObjectNotFound, "NoSuchKey"),
    (429, "TooManyRequests", StoreThrottled, "fewer"),
    (503, "SlowDown", StoreThrottled, "fewer"),
    (503, "ServiceUnavailable", StoreUnavailable, "try again"),
    (500, "InternalError", StoreUnavailable, "try again"),
    (501, "NotImplemented", StoreUnsupported, "use another store"),
    (400, "IncompleteBody", StoreUnavailable, "try again"),
    (400, "BadDigest", StoreUnavailable, "try again"),
    (400, "XAmzContentSHA256Mismatch", StoreUnavailable, "try again"),
    (400, "TokenRefreshRequired", StoreDenied, "renew the session token"),
    (400, "IllegalLocationConstraintException", StoreDenied, "region"),
    (400, "KMS.DisabledException", StoreDenied, "encryption key"),
    (403, "RequestExpired", StoreDenied, "clock"),
    (403, "InvalidObjectState", StoreDenied, "archive class"),
    (403, "QuotaExceeded", StoreUnavailable, "no room left"),
    (507, "XMinioStorageFull", StoreUnavailable, "no room left"),
    (503, "SlowDownWrite", StoreThrottled, "fewer"),
    (503, "SlowDownRead", StoreThrottled, "fewer"),
    (400, "ThrottlingException", StoreThrottled, "fewer"),
    (400, "EntityTooLarge", InvalidRequest, "EntityTooLarge"),
]


def test_what_a_server_answers_becomes_a_named_error() -> None:
    def answer(asked: Asked) -> Answer:
        status, code, _, _ = STATUSES[int(asked.path.rpartition("/")[2])]
        return Answer(status, {}, _error(code))

    with http_stub(answer) as stub:
        store = S3ObjectStore("bucket", "prefix", settings=_stub_settings(stub))
        for number, (_, code, kind, remedy) in enumerate(STATUSES):
            key = f"some/{number}"
            for operation, call in (("get", store.get), ("put", lambda one: store.put(one, b"1"))):
                with pytest.raises(StoreError) as caught:
                    call(key)
                message = str(caught.value)
                if operation == "get" or kind is not ObjectNotFound:
                    assert type(caught.value) is kind, message
                for part in ("s3://bucket/prefix", operation, key, code, remedy):
                    assert part in message
                assert "TOPSECRET" not in message
                assert caught.value.__cause__ is None
        assert len(stub.asked) == 2 * len(STATUSES), "obstore retried by itself"


def test_plain_http_must_be_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidSetting, match=r"allow\.http"):
        open_object_store("s3://bucket", {"endpoint": "http://127.0.0.1:9"})
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(InvalidSetting, match=r"allow\.http"):
        open_object_store("s3://bucket")


def test_directory_buckets_are_refused() -> None:
    with pytest.raises(StoreUnsupported, match="in order"):
        open_object_store("s3://name--use1-az4--x-s3/prefix")


def test_secrets_are_not_printed() -> None:
    settings = S3Settings(secret_access_key="TOPSECRET", region="eu-west-1")
    assert repr(settings) == "S3Settings(region=..., secret_access_key=...)"
    assert "TOPSECRET" not in f"{settings}"
