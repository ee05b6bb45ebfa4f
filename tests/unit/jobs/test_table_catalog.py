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


def test_a_bucket_holds_no_catalog_of_sqlite() -> None:
    with pytest.raises(InvalidRequest, match="is not a directory"):
        CatalogAddress("s3://bucket/tables").open()


def test_a_warehouse_must_be_said() -> None:
    with pytest.raises(InvalidRequest, match="give one of them"):
        CatalogAddress().open()


def test_a_directory_that_urls_cannot_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="choose another directory"):
        CatalogAddress(str(tmp_path / "50%")).open()


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(Corrupt, match="is damaged") as caught:
        CatalogAddress(str(tmp_path)).open()
    one_line(caught.value)


def test_a_warehouse_below_a_file_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotFound) as caught:
        CatalogAddress(str(tmp_path / "file" / "tables")).open()
    one_line(caught.value)


def test_a_database_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open database file") as caught:
        CatalogAddress(str(tmp_path), f"sqlite:///{tmp_path}/none/catalog.db").open()
    one_line(caught.value)


def test_a_rest_catalog_that_is_down_is_told() -> None:
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        CatalogAddress("s3://bucket", "http://127.0.0.1:9").open()
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


def test_a_catalog_that_nobody_knows_is_told() -> None:
    with pytest.raises(InvalidRequest) as caught:
        CatalogAddress(None, "nowhere").open()
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
