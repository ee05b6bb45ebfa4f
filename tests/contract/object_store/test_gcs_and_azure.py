"""GCS and Azure without their servers: what is built, signed and sent."""

import base64
import json
from datetime import timedelta

import obstore
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from obstore.store import AzureStore, GCSStore

from tests.support.http_stub import Answer, Asked, http_stub
from varve.foundation.errors import InvalidSetting, ObjectExists, StoreDenied
from varve.object_store import (
    AzureObjectStore,
    AzureSettings,
    GcsObjectStore,
    GcsSettings,
    open_object_store,
)

ACCOUNT_KEY = base64.b64encode(b"k" * 64).decode()


def _service_account() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return json.dumps(
        {
            "type": "service_account",
            "private_key": pem.decode(),
            "private_key_id": "1",
            "client_email": "tester@example.iam.gserviceaccount.com",
            "client_id": "2",
            "token_uri": "https://oauth2.googleapis.com/token",
        }
    )


def test_gcs_signs_for_its_bucket_and_prefix() -> None:
    store = open_object_store("gs://bucket/prefix", {"service.account.key": _service_account()})
    assert store.name == "gs://bucket/prefix"
    assert isinstance(store, GcsObjectStore)
    assert isinstance(store.client, GCSStore)
    url = obstore.sign(store.client, "GET", "a/b", timedelta(hours=1))
    assert url.startswith("https://storage.googleapis.com/bucket/prefix/a/b?")
    assert "X-Goog-Signature=" in url


def test_azure_signs_for_its_container_and_prefix() -> None:
    settings = {"account.name": "account", "account.key": ACCOUNT_KEY}
    store = open_object_store("az://container/prefix", settings)
    assert store.name == "az://container/prefix"
    assert isinstance(store, AzureObjectStore)
    assert isinstance(store.client, AzureStore)
    url = obstore.sign(store.client, "GET", "a/b", timedelta(hours=1))
    assert url.startswith("https://account.blob.core.windows.net/container/prefix/a/b?")
    assert "sig=" in url


def test_gcs_creates_only_generation_zero() -> None:
    with http_stub(lambda asked: Answer(412, {})) as stub:
        settings = GcsSettings(base_url=stub.endpoint, bearer_token="token", allow_http=True)
        store = GcsObjectStore("bucket", "prefix", settings=settings)
        with pytest.raises(ObjectExists, match="gs://bucket/prefix: create 'a'"):
            store.create("a", b"1")
        assert stub.asked[0].headers["x-goog-if-generation-match"] == "0"
        assert stub.asked[0].headers["authorization"] == "Bearer token"
        assert len(stub.asked) == 1


def _azure(endpoint: str) -> AzureObjectStore:
    settings = AzureSettings(
        account_name="account", sas_token="sv=1&sig=TOPSECRET", endpoint=endpoint, allow_http=True
    )
    return AzureObjectStore("container", "prefix", settings=settings)


def test_azure_creates_only_what_is_absent() -> None:
    body = b"<Error><Code>BlobAlreadyExists</Code></Error>"
    with http_stub(lambda asked: Answer(409, {}, body)) as stub:
        with pytest.raises(ObjectExists, match="az://container/prefix: create 'a'"):
            _azure(stub.endpoint).create("a", b"1")
        assert stub.asked[0].headers["if-none-match"] == "*"
        assert len(stub.asked) == 1


def test_a_shared_access_signature_is_not_shown_in_errors() -> None:
    with http_stub(lambda asked: Answer(403, {})) as stub:
        with pytest.raises(StoreDenied) as caught:
            _azure(stub.endpoint).get("a")
        assert "TOPSECRET" in stub.asked[0].path
    assert "TOPSECRET" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_deleting_a_missing_object_does_not_keep_the_others() -> None:
    def answer(asked: Asked) -> Answer:
        return Answer(404 if "missing" in asked.path else 204, {})

    with http_stub(answer) as stub:
        settings = GcsSettings(base_url=stub.endpoint, bearer_token="token", allow_http=True)
        store = GcsObjectStore("bucket", settings=settings)
        store.delete(["a", "missing", *(f"b{number}" for number in range(20))])
        deleted = {asked.path for asked in stub.asked if asked.method == "DELETE"}
        assert {f"/bucket/{key}" for key in ("a", "b0", "b19")} <= deleted


def test_plain_http_must_be_allowed() -> None:
    with pytest.raises(InvalidSetting, match=r"allow\.http"):
        open_object_store("gs://bucket", {"base.url": "http://127.0.0.1:9"})
    with pytest.raises(InvalidSetting, match=r"allow\.http"):
        open_object_store("az://c", {"account.name": "a", "endpoint": "http://127.0.0.1:9"})
