"""Versions of a bucket: asked for with a right signature, page by page."""

from datetime import UTC, datetime
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.support.http_stub import Answer, Asked, HttpStub, http_stub
from varve.foundation.clock import ManualClock
from varve.foundation.errors import (
    BucketNotFound,
    StoreDenied,
    StoreError,
    StoreUnsupported,
)
from varve.foundation.settings import GivenValue
from varve.object_store.s3_versions import ObjectVersion, S3Versions, open_versions

NOW_MS = 1_700_000_000_000


def settings(stub: HttpStub) -> dict[str, GivenValue]:
    return {
        "endpoint": stub.endpoint,
        "region": "eu-west-1",
        "access.key.id": "KEYID",
        "secret.access.key": "TOPSECRET",
        "session.token": "token",
        "allow.http": True,
    }


def open_at(stub: HttpStub) -> S3Versions:
    found = open_versions("s3://bucket/some", settings(stub), clock=ManualClock(NOW_MS))
    assert found is not None
    return found


def page(*entries: str, following: tuple[str, str] | None = None) -> bytes:
    more = "<IsTruncated>false</IsTruncated>"
    if following is not None:
        more = (
            f"<IsTruncated>true</IsTruncated><NextKeyMarker>{following[0]}</NextKeyMarker>"
            f"<NextVersionIdMarker>{following[1]}</NextVersionIdMarker>"
        )
    words = "".join(entries)
    space = "http://s3.amazonaws.com/doc/2006-03-01/"
    return f'<ListVersionsResult xmlns="{space}">{more}{words}</ListVersionsResult>'.encode()


def entry(kind: str, key: str, version: str, is_latest: str) -> str:
    return (
        f"<{kind}><Key>{key}</Key><VersionId>{version}</VersionId>"
        f"<IsLatest>{is_latest}</IsLatest></{kind}>"
    )


def test_pages_are_read_one_after_the_other() -> None:
    def answer(asked: Asked) -> Answer:
        if "key-marker" not in asked.path:
            first = entry("DeleteMarker", "some/a", "2", "true")
            return Answer(200, {}, page(first, following=("some/a", "2")))
        return Answer(200, {}, page(entry("Version", "some/a", "1", "false")))

    with http_stub(answer) as stub:
        assert list(open_at(stub).find("a")) == [
            ObjectVersion("a", "2", is_latest=True, is_marker=True),
            ObjectVersion("a", "1", is_latest=False, is_marker=False),
        ]
        query = parse_qs(urlsplit(stub.asked[1].path).query)
        assert (query["prefix"], query["version-id-marker"]) == (["some/a"], ["2"])


def test_pages_that_repeat_are_refused() -> None:
    with http_stub(lambda asked: Answer(200, {}, page(following=("k", "v")))) as stub:
        versions = open_at(stub)
        with pytest.raises(StoreUnsupported, match="pages repeat"):
            list(versions.find(""))


def test_requests_are_signed_as_amazon_signs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    auth: Any = import_module("botocore.auth")
    requests: Any = import_module("botocore.awsrequest")
    credentials: Any = import_module("botocore.credentials")
    with http_stub(lambda asked: Answer(204, {})) as stub:
        open_at(stub).delete(ObjectVersion("a/b=c+d", "v/1+x", is_latest=False, is_marker=False))
        (asked,) = stub.asked
        moment = datetime.fromtimestamp(NOW_MS / 1000, UTC)
        monkeypatch.setattr(auth, "get_current_datetime", lambda *given: moment)
        request = requests.AWSRequest(asked.method, f"{stub.endpoint}{asked.path}")
        request.context["payload_signing_enabled"] = True
        signer = auth.S3SigV4Auth(
            credentials.Credentials("KEYID", "TOPSECRET", "token"), "s3", "eu-west-1"
        )
        signer.add_auth(request)
        assert asked.headers["authorization"] == request.headers["Authorization"]


@pytest.mark.parametrize(
    ("status", "error"),
    [(403, StoreDenied), (404, BucketNotFound), (501, StoreUnsupported)],
)
def test_refusals_have_names_and_show_no_secret(status: int, error: type[StoreError]) -> None:
    body = b"<Error><Code>NoSuchBucket</Code>\n<Message>because</Message></Error>"
    with http_stub(lambda asked: Answer(status, {}, body)) as stub:
        versions = open_at(stub)
        with pytest.raises(error) as caught:
            list(versions.find("a"))
    assert "s3://bucket/some" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "TOPSECRET" not in str(caught.value)


def test_a_version_that_is_gone_is_fine_and_a_server_that_is_down_is_asked_again() -> None:
    answers = [Answer(503, {}), Answer(404, {}, b"<Error><Code>NoSuchVersion</Code></Error>")]
    with http_stub(lambda asked: answers.pop(0)) as stub:
        open_at(stub).delete(ObjectVersion("a", "1", is_latest=False, is_marker=False))
    assert answers == []


def test_other_stores_and_unsigned_requests_have_no_versions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID", raising=False)
    assert open_versions("file:/somewhere", {}) is None
    assert open_versions("s3://bucket/x", {}) is None
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "KEYID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "TOPSECRET")
    assert open_versions("s3://bucket/x", {}) is not None
    assert open_versions("s3://bucket/x", {"skip.signature": True}) is None
