"""Settings that no client can be made of: named with what helps, and without their secrets."""

from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from varve.foundation.errors import InvalidSetting, StoreDenied, StoreError, StoreUnavailable
from varve.object_store import open_object_store
from varve.object_store.obstore_errors import translate

KEY = '{"private_key": "TOPSECRET", "private_key_id": "1", "client_email": "a@b"}'


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_ACCOUNT_NAME", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("url", "settings", "remedy"),
    [
        ("az://c/x", {}, r"account\.name, or by AZURE_STORAGE_ACCOUNT_NAME"),
        ("az://c", {"account.name": "a", "account.key": "!TOPSECRET"}, r"account\.key is base64"),
        ("az://c", {"account.name": "a", "sas.token": "TOPSECRET"}, r"sas\.token is written"),
        ("az://c", {"account.name": "a b"}, "correct the settings of the store"),
        ("gs://b", {"service.account.file": "/no/such"}, r"service\.account\.file"),
        ("gs://b", {"service.account.key": "{TOPSECRET"}, r"service\.account\.key"),
        ("gs://b", {"service.account.key": '"TOPSECRET"'}, r"service\.account\.key"),
        ("gs://b", {"service.account.key": KEY}, "must be PEM"),
        ("s3://b", {"access.key.id": "TOPSECRET"}, "together"),
        ("s3://b", {"secret.access.key": "TOPSECRET"}, "together"),
    ],
)
def test_settings_that_make_no_client_are_named_with_a_remedy(
    url: str, settings: dict[str, str], remedy: str
) -> None:
    with pytest.raises(InvalidSetting, match=f"^{url}: open failed: .*; .*{remedy}") as caught:
        open_object_store(url, settings)
    assert "TOPSECRET" not in str(caught.value)


def test_a_missing_file_of_credentials_in_the_environment_is_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/no/such")
    with pytest.raises(InvalidSetting, match=r"/no/such.*GOOGLE_APPLICATION_CREDENTIALS"):
        open_object_store("gs://b")


def test_a_file_without_certificates_is_told_of(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("none")
    with pytest.raises(InvalidSetting, match=r"ca\.file must hold PEM"):
        open_object_store("s3://b", {"ca.file": str(tmp_path / "ca")})


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://h:9000,access.key.id=test,secret.access.key=TOPSECRET",
        "http://h:9000/,secret.access.key=TOPSECRET",
        "http://h:9000 secret.access.key=TOPSECRET",
        "http://h/?TOPSECRET",
        "https://me:TOPSECRET@h",
        "https://",
        "TOPSECRET",
    ],
)
def test_an_endpoint_that_is_no_url_is_not_shown(endpoint: str) -> None:
    for url, name in (("s3://b", "endpoint"), ("gs://b", "base.url"), ("az://b", "endpoint")):
        with pytest.raises(InvalidSetting, match="must be a URL such as") as caught:
            open_object_store(url, {name: endpoint})
        assert "TOPSECRET" not in str(caught.value)


@pytest.mark.parametrize(
    "endpoint", ["http://minio_1:9000", "http://[::1]:9000/", "http://127.0.0.1:10000/account1"]
)
def test_an_endpoint_may_have_any_host_and_a_path(endpoint: str) -> None:
    settings = {"account.name": "a", "endpoint": endpoint, "allow.http": "true"}
    assert open_object_store("az://b", settings).name == "az://b"


@pytest.mark.parametrize(
    ("status", "kind"),
    [("403 Forbidden", StoreDenied), ("404 Not Found", StoreDenied), ("500 x", StoreUnavailable)],
)
def test_a_metadata_service_without_credentials_is_told_as_missing_credentials(
    status: str, kind: type[StoreError]
) -> None:
    error = GenericError(
        "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - "
        f"Server returned non-2xx status code: {status}: denied"
    )
    told = translate(error, store="s3://b", operation="get", key="a")
    assert type(told) is kind
    assert "no credentials were given" in str(told)
    assert "set them in settings or environment" in str(told)
