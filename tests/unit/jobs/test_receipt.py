"""Receipts are signed, what was changed is found out, and the page shows them as text."""

import json
from html import unescape
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.support.erasure_bench import ErasureBench
from varve.foundation.errors import InvalidRequest
from varve.jobs.erase.receipt import encode_receipt, render_receipt
from varve.jobs.erase.receipt_signature import (
    NotGenuine,
    SigningKey,
    read_public_key,
    read_receipt,
    verify_receipt,
)

PRIVATE = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))


def pem(private: Any = PRIVATE, passphrase: bytes | None = None) -> bytes:
    how: Any = serialization.NoEncryption()
    if passphrase is not None:
        how = serialization.BestAvailableEncryption(passphrase)
    data: bytes = private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, how
    )
    return data


def public_pem(private: Any = PRIVATE) -> bytes:
    data: bytes = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return data


@pytest.fixture(scope="module")
def receipt() -> dict[str, Any]:
    bench = ErasureBench()
    bench.put("ann", "bob")
    bench.roll()
    bench.copy()
    key = SigningKey.read(pem(), passphrase=None, where="key.pem")
    deadline = bench.topic.kit.now_ms + 86_400_000
    found = bench.erase("ann", signing_key=key, deadline_ms=deadline).receipt
    assert found is not None
    return found


def test_a_signed_receipt_is_verified_however_it_is_laid_out(receipt: dict[str, Any]) -> None:
    key = read_public_key(public_pem(), "public.pem")
    for data in (encode_receipt(receipt), json.dumps(receipt, sort_keys=True).encode()):
        assert verify_receipt(data, key, where="r.json") == receipt


@pytest.mark.parametrize("name", ["records", "deadline_ms", "out_of_reach", "topics", "rescan"])
def test_a_change_anywhere_is_found_out(receipt: dict[str, Any], name: str) -> None:
    key = read_public_key(public_pem(), "public.pem")
    changed = json.dumps({**receipt, name: 0}).encode()
    with pytest.raises(NotGenuine, match=r"r\.json: the signature does not fit.*changed"):
        verify_receipt(changed, key, where="r.json")
    added = json.dumps({**receipt, "note": "all is well"}).encode()
    with pytest.raises(NotGenuine, match="changed"):
        verify_receipt(added, key, where="r.json")


def test_a_name_that_stands_twice_is_refused(receipt: dict[str, Any]) -> None:
    key = read_public_key(public_pem(), "public.pem")
    text = encode_receipt(receipt).decode()
    forged = [
        '{"kind": "other", "erasure": "forged",' + text.lstrip()[1:],
        text.replace('"records":', '"records": 999, "records":', 1),
        text.replace('"found":', '"found": 7, "found":', 1),
    ]
    for one in forged:
        assert json.loads(one) == receipt
        with pytest.raises(NotGenuine, match=r"r\.json: an object has the name '\w+' twice"):
            verify_receipt(one.encode(), key, where="r.json")


def test_text_that_nobody_can_have_signed_is_a_change(receipt: dict[str, Any]) -> None:
    key = read_public_key(public_pem(), "public.pem")
    with pytest.raises(NotGenuine, match="changed"):
        verify_receipt(json.dumps({**receipt, "erasure": "\ud800"}).encode(), key, where="r")


def test_another_signer_and_no_signature_are_told_apart(receipt: dict[str, Any]) -> None:
    other = read_public_key(public_pem(Ed25519PrivateKey.generate()), "public.pem")
    with pytest.raises(NotGenuine, match="another key"):
        verify_receipt(encode_receipt(receipt), other, where="r")
    key = read_public_key(public_pem(), "public.pem")
    bare = {name: value for name, value in receipt.items() if name != "signature"}
    with pytest.raises(NotGenuine, match="not signed: compare it with the copy"):
        verify_receipt(encode_receipt(bare), key, where="r")
    for signature in ({**receipt["signature"], "value": "!"}, {"algorithm": "RSA"}):
        with pytest.raises(NotGenuine, match=r"not base64|is known"):
            verify_receipt(encode_receipt({**bare, "signature": signature}), key, where="r")
    for data in (b"", b"[]", b'{"kind": "note"}'):
        with pytest.raises(NotGenuine, match=r"not JSON|not a receipt"):
            read_receipt(data, "r")


def test_keys_with_a_passphrase_need_it_and_other_kinds_are_refused() -> None:
    locked = pem(passphrase=b"secret")
    assert SigningKey.read(locked, passphrase=b"secret", where="k").private is not None
    for passphrase in (None, b"wrong"):
        with pytest.raises(InvalidRequest, match="VARVE_SIGN_PASSPHRASE"):
            SigningKey.read(locked, passphrase=passphrase, where="k")
    other = generate_private_key(SECP256R1())
    with pytest.raises(InvalidRequest, match="Ed25519 is needed"):
        SigningKey.read(pem(other), passphrase=None, where="k")
    with pytest.raises(InvalidRequest, match="Ed25519 is needed"):
        read_public_key(public_pem(other), "p")
    with pytest.raises(InvalidRequest, match="cannot be read as a public key"):
        read_public_key(b"none", "p")


def test_the_page_needs_nothing_else_and_shows_all_as_text(receipt: dict[str, Any]) -> None:
    page = render_receipt(receipt)
    assert "src=" not in page
    assert "href=" not in page
    assert receipt["erasure"] in page
    assert receipt["signature"]["value"] in page
    assert "met</b>" in page
    assert "<th>Outputs</th>" in page
    for text in receipt["out_of_reach"]:
        assert text in unescape(page)
    evil = {**receipt, "erasure": "<script>", "deadline_met": None}
    del evil["signature"]
    page = render_receipt(evil)
    assert "<script>" not in page
    assert "The receipt is not signed." in page
    assert "none was set" in page
