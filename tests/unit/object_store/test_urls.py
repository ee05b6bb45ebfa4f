"""URLs of object stores: equal places are written alike, and no secret is shown."""

from pathlib import Path

import pytest

from varve.foundation.errors import InvalidRequest
from varve.object_store.opening import hide_secrets, normal_url


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("file:/p/q", "file:/p/q"),
        ("file:///p/q/", "file:/p/q"),
        ("FILE:/p/./x/../q//", "file:/p/q"),
        ("file://localhost/p/q", "file:/p/q"),
        ("file:/p%20q", "file:/p%20q"),
        ("file:/p q", "file:/p%20q"),
        ("s3://b", "s3://b"),
        ("S3://b/", "s3://b"),
        ("s3://Bucket/a/b/", "s3://Bucket/a/b"),
        ("gs://b//a/", "gs://b/a"),
        ("az://c/x", "az://c/x"),
        ("Memory:x", "memory:x"),
        ("Own://user@h/?x", "Own://user@h/?x"),
        ("topic", "topic"),
    ],
)
def test_each_place_is_written_one_way(url: str, normal: str) -> None:
    assert normal_url(url) == normal
    assert normal_url(normal) == normal


def test_a_relative_directory_becomes_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert normal_url("file:cold") == f"file:{tmp_path}/cold"


@pytest.mark.parametrize(
    "url",
    ["s3://AKIA:TOPSECRET@b/x", "gs://b?TOPSECRET", "file://TOPSECRET@/x", "az://b#TOPSECRET"],
)
def test_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(InvalidRequest, match="credentials and options are settings") as caught:
        normal_url(url)
    assert "TOPSECRET" not in str(caught.value)
    assert "TOPSECRET" not in hide_secrets(url)


@pytest.mark.parametrize("url", ["s3://[b", "file://[b"])
def test_a_url_that_cannot_be_read_is_told_so(url: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be read"):
        normal_url(url)
