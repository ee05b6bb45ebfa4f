"""Documents come back as they went; what is damaged, foreign or of a later varve is refused."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.remote_builder import HOME, copy, make_segment, open_manifest
from varve.foundation.errors import Corrupt, StoreError, UnsupportedFormat
from varve.kernels.crc import crc32c_of
from varve.object_store import MemoryObjectStore
from varve.tiering.manifest.codec import decode_manifest, decode_page, encode_manifest, encode_page
from varve.tiering.manifest.manifest import (
    Manifest,
    Page,
    RetiredObject,
    refer_to_segments,
)
from varve.tiering.manifest.segment import SegmentState

FORMATS = Path(__file__).parents[4] / "docs" / "reference" / "formats"

SEGMENTS = (
    make_segment(0, SegmentState.COPY_FINISHED),
    replace(
        make_segment(1, SegmentState.DELETE_STARTED),
        key_count=5,
        stale_bytes=6,
        delete_horizon_ms=7,
        replaced_until_ms=8,
        epochs=((0, 100), (2, 150)),
        has_aborted=True,
        max_timestamp=-1,
    ),
)
PAGE = refer_to_segments("page-1", [make_segment(n) for n in range(3)])
MANIFEST = Manifest(
    path=HOME,
    version=7,
    commit_id="commit-7",
    previous_commit_id="commit-6",
    writer='broker "ü"',
    leader_epoch=4,
    at_ms=1_700_000_000_000,
    log_start_offset=11,
    cleaned_up_to=12,
    segments=SEGMENTS,
    pages=(PAGE,),
    retired=(RetiredObject("page/00000000000000000000-x.json", 99),),
)


def seal(document: dict[str, object]) -> bytes:
    document.pop("crc32c", None)
    body = json.dumps(document, separators=(",", ":")).encode()[:-1]
    return b'%b,"crc32c":"%08x"}\n' % (body, crc32c_of(body))


def opened(manifest: Manifest = MANIFEST) -> dict[str, object]:
    return dict(json.loads(encode_manifest(manifest)))


def test_a_manifest_comes_back_as_it_went() -> None:
    assert decode_manifest(encode_manifest(MANIFEST), where="here") == MANIFEST


def test_a_page_that_is_not_what_its_manifest_says_is_corrupt() -> None:
    data = encode_page(Page("leaf", 0, segments=SEGMENTS), HOME)
    ref = refer_to_segments("leaf", SEGMENTS)
    with pytest.raises(Corrupt, match="not what its manifest says"):
        decode_page(data, replace(ref, log_bytes=1), HOME, where="here")
    with pytest.raises(Corrupt, match="partition 3, not of"):
        decode_page(data, ref, replace(HOME, partition=4), where="here")
    mixed = Page("leaf", 1, segments=SEGMENTS, pages=(PAGE,))
    with pytest.raises(Corrupt, match="not what its manifest says: None"):
        decode_page(encode_page(mixed, HOME), ref, HOME, where="here")


@given(st.data())
def test_no_changed_byte_goes_unseen(data: st.DataObject) -> None:
    encoded = bytearray(encode_manifest(MANIFEST))
    place = data.draw(st.integers(0, len(encoded) - 1))
    encoded[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(Corrupt):
        decode_manifest(bytes(encoded), where="here")


@given(st.binary(max_size=200))
def test_bytes_of_no_meaning_get_a_named_error(data: bytes) -> None:
    with pytest.raises(Corrupt, match="here"):
        decode_manifest(data, where="here")


@pytest.mark.parametrize("cut", [0, 1, 20, 300])
def test_a_truncated_manifest_is_corrupt(cut: int) -> None:
    with pytest.raises(Corrupt, match="damaged"):
        decode_manifest(encode_manifest(MANIFEST)[: -1 - cut], where="here")


def test_a_later_format_is_told_apart_from_damage() -> None:
    with pytest.raises(UnsupportedFormat, match="format 2 is newer than 1"):
        decode_manifest(b'{"format":2,"whatever":[]}', where="here")
    with pytest.raises(UnsupportedFormat, match="no field colour"):
        decode_manifest(seal(opened() | {"colour": "red"}), where="here")


@pytest.mark.parametrize(
    "changes",
    [
        {"version": 0},
        {"version": "7"},
        {"version": 1 << 63},
        {"partition": -1},
        {"topic": "a/b"},
        {"commit": "../x"},
        {"segments": [{}]},
        {"segments": None},
        {"retired": [["manifest/00000000000000000001.json", 1]]},
        {"leader_epoch": 1.5},
        {"kind": "page"},
    ],
)
def test_a_sealed_manifest_with_a_wrong_value_is_corrupt(changes: dict[str, object]) -> None:
    with pytest.raises(Corrupt, match="here") as caught:
        decode_manifest(seal(opened() | changes), where="here")
    assert not isinstance(caught.value, UnsupportedFormat)


def test_a_sealed_segment_that_contradicts_itself_is_corrupt() -> None:
    document = json.loads(encode_manifest(MANIFEST))
    document["segments"][0]["end_offset"] = 0
    document["segments"][1]["end_offset"] = 0
    with pytest.raises(Corrupt, match="base offset"):
        decode_manifest(seal(document), where="here")


def test_what_a_damaged_store_holds_changes_nothing() -> None:
    objects = MemoryObjectStore()
    copy(open_manifest(objects, 1), 0)
    newest = HOME.manifest_key(2)
    objects.put(newest, objects.get(newest)[:-5])
    store = open_manifest(objects, 2)
    with pytest.raises(StoreError, match=re.escape(newest)):
        copy(store, 1)
    found = [HOME.find_version(entry.key) for entry in objects.list(HOME.manifest_folder)]
    assert [version for version in found if version is not None] == [1, 2]


def test_the_examples_of_the_format_page_can_be_read() -> None:
    text = (FORMATS / "manifest.md").read_text(encoding="utf-8")
    documents = re.findall(r"^\{.*\}$", text, re.MULTILINE)
    assert len(documents) == 2
    manifest = decode_manifest(f"{documents[0]}\n".encode(), where="example")
    assert manifest.version == 4711
    (ref,) = manifest.pages
    page = decode_page(f"{documents[1]}\n".encode(), ref, manifest.path, where="example")
    assert len(page.segments) == ref.segment_count
