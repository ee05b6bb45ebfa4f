"""Catalogs: where tables are, what is noted of them, and what goes wrong in one line."""

from pathlib import Path

import pytest

from tests.support.http_stub import Answer, Asked, http_stub
from varve.foundation.errors import (
    Corrupt,
    InvalidRequest,
    NotFound,
    StoreDenied,
    StoreError,
    StoreUnavailable,
)
from varve.jobs.table.catalog import (
    CatalogAddress,
    find_table,
    hide_user,
    split_name,
    translate_catalog_errors,
)


def one_line(error: StoreError) -> str:
    text = str(error)
    assert "\n" not in text
    return text


def test_a_catalog_of_sqlite_lies_in_the_warehouse(tmp_path: Path) -> None:
    catalog = CatalogAddress(str(tmp_path / "new" / "tables")).open()
    assert (tmp_path / "new" / "tables" / "catalog.db").exists()
    assert find_table(catalog, "a.b") is None
    catalog.close()


def test_what_is_noted_opens_it_again_and_holds_no_credential() -> None:
    address = CatalogAddress(
        "s3://bucket/tables",
        "postgresql://me:secret@host/db",
        (("s3.endpoint", "http://host"), ("s3.secret-access-key", "hidden"), ("token", "t")),
    )
    how = dict(address.how())
    assert how == {
        "catalog": "postgresql://me@host/db",
        "setting.s3.endpoint": "http://host",
        "warehouse": "s3://bucket/tables",
    }
    again = CatalogAddress.of_how(how, {"token": "t"})
    assert dict(again.settings) == {"s3.endpoint": "http://host", "token": "t"}
    assert hide_user(address.place) == "s3://bucket/tables"


@pytest.mark.parametrize(
    "name",
    ["orders", "", ".orders", "a..b", "a.", "a/b.c", "a.b\n", "a.'b", 'a."b"', "a.b\\", "a.\ud800"],
)
def test_a_table_has_a_namespace(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"write NAMESPACE\.NAME"):
        split_name(name)


def test_a_name_that_folders_cannot_have_is_refused() -> None:
    assert split_name("a." + "b" * 200) == ("a", "b" * 200)
    with pytest.raises(InvalidRequest, match="201 bytes, the limit is 200"):
        split_name("a." + "b" * 201)


@pytest.mark.parametrize(
    ("warehouse", "catalog", "error", "told"),
    [
        ("s3://bucket/tables", None, InvalidRequest, "is not a directory"),
        (None, None, InvalidRequest, "give one of them"),
        (None, "nowhere", InvalidRequest, "nowhere"),
        ("{tmp}/50%", None, InvalidRequest, "choose another directory"),
        ("{tmp}/damaged", None, Corrupt, "is damaged"),
        ("{tmp}/file/tables", None, NotFound, "file/tables"),
        ("{tmp}", "sqlite:///{tmp}/none/x.db", StoreUnavailable, "unable to open database file"),
        ("s3://bucket", "http://127.0.0.1:9", StoreUnavailable, "cannot be reached"),
    ],
)
def test_a_catalog_that_cannot_be_opened_is_told_in_one_line(
    tmp_path: Path,
    warehouse: str | None,
    catalog: str | None,
    error: type[StoreError],
    told: str,
) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged/catalog.db").write_bytes(b"this is no database at all" * 100)
    place, database = (one and one.format(tmp=tmp_path) for one in (warehouse, catalog))
    with pytest.raises(error, match=told) as caught:
        CatalogAddress(place, database).open()
    one_line(caught.value)


@pytest.mark.parametrize(
    ("status", "error"),
    [(401, StoreDenied), (403, StoreDenied), (503, StoreUnavailable), (400, InvalidRequest)],
)
def test_a_rest_catalog_that_refuses_is_told(status: int, error: type[StoreError]) -> None:
    body = b'{"error": {"message": "told", "type": "Some", "code": %d}}' % status

    def answer(asked: Asked) -> Answer:
        return Answer(status, {"content-type": "application/json"}, body)

    with http_stub(answer) as stub, pytest.raises(error) as caught:
        CatalogAddress("s3://bucket", stub.endpoint).open()
    one_line(caught.value)


@pytest.mark.parametrize(
    ("raised", "error"),
    [
        (PermissionError(13, "Permission denied"), StoreDenied),
        (OSError("When writing: AWS Error ACCESS_DENIED during PutObject"), StoreDenied),
        (OSError("When listing: AWS Error NO_SUCH_BUCKET: does not exist"), NotFound),
        (OSError("curl: could not connect"), StoreUnavailable),
    ],
)
def test_errors_of_files_are_sorted(raised: OSError, error: type[StoreError]) -> None:
    with pytest.raises(error), translate_catalog_errors("here"):
        raise raised


def test_a_catalog_that_is_missing_is_not_made_anew(tmp_path: Path) -> None:
    folder, other = tmp_path / "tables", tmp_path / "other.db"
    for address in (
        CatalogAddress(str(folder)),
        CatalogAddress(str(folder), f"sqlite:///{other}"),
    ):
        address.check()
        with pytest.raises(NotFound, match=r"\.db is missing: mount or restore it") as caught:
            address.open_existing()
        one_line(caught.value)
    assert not folder.exists()
    assert not other.exists()


def test_a_database_without_a_catalog_gets_none_when_a_table_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").touch()
    with pytest.raises(NotFound, match="contains no catalog"):
        find_table(CatalogAddress(str(tmp_path)).open_existing(), "a.b")
    assert (tmp_path / "catalog.db").stat().st_size == 0


def test_a_directory_has_one_url_however_it_is_written(tmp_path: Path) -> None:
    wanted = f"file://{tmp_path}"
    for slashes in ("", "file:", "file://", "file:///"):
        assert CatalogAddress(f"{slashes}{tmp_path}").place == wanted
