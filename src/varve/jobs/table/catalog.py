"""Opens Iceberg catalogs, by default a SQLite file in the warehouse.

Invariant  the registered settings of a catalog (`how`) contain no credentials. Errors of a catalog
           or warehouse become a StoreError with one line. `open_existing` never creates a missing
           catalog.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table
from pyiceberg.utils.config import Config
from requests.exceptions import RequestException
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DatabaseError, SQLAlchemyError

from varve.foundation import errors

NAME: Final = "varve"
"""The name of the catalog, under which a SQL catalog stores its tables."""
DATABASE: Final = "catalog.db"
FILE_IO: Final = "pyiceberg.io.pyarrow.PyArrowFileIO"

_WAREHOUSE_SUFFIX: Final = ".tables"
"""Appended to the path of a log directory: its default warehouse."""
_INIT_TABLES: Final = "init_catalog_tables"
_SECRET: Final = re.compile(r"key|secret|token|credential|password|header|sas|signer", re.I)
_NOT_IN_NAMES: Final = re.compile(r"""[/\\'"`]""")
_NAME_BYTES_MAX: Final = 200
"""File systems allow 255 bytes; the names of side tables and copies are longer."""
_URL_SYNTAX: Final = re.compile(r"[%?#]")
_DENIED: Final = (
    iceberg_errors.UnauthorizedError,
    iceberg_errors.ForbiddenError,
    iceberg_errors.AuthorizationExpiredError,
    iceberg_errors.OAuthError,
    iceberg_errors.SignError,
)
_DENIED_WORDS: Final = re.compile(r"access.?denied|forbidden|readonly|read-only|permission", re.I)
_NOT_FOUND_WORDS: Final = re.compile(
    r"NoSuchBucket|no such file|does not exist|not a directory", re.I
)


@dataclass(frozen=True, slots=True)
class CatalogAddress:
    """A catalog and its settings.

    `catalog` is None for SQLite in the warehouse, a URL (http: for REST, sqlite: or postgresql: for
    SQL), or a name that pyiceberg's own configuration knows.
    """

    warehouse: str | None = None
    catalog: str | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def locate(
        cls,
        warehouse: str | None,
        catalog: str | None,
        settings: tuple[tuple[str, str], ...],
        directories: Sequence[str],
    ) -> "CatalogAddress":
        """The address that is given, else that of the warehouse beside the log directories.

        An existing warehouse takes precedence, since the order of the directories may change.
        """
        if warehouse is None and catalog is None and directories:
            candidates = [f"{directory}{_WAREHOUSE_SUFFIX}" for directory in directories]
            warehouse = next(filter(os.path.isdir, candidates), candidates[0])
        return cls(warehouse, catalog, settings)

    def properties(self) -> dict[str, str]:
        """Returns the properties for pyiceberg."""
        properties = {"py-io-impl": FILE_IO}
        if self.warehouse is not None:
            properties["warehouse"] = absolute(self.warehouse)
        if self.catalog is None:
            properties |= {"type": "sql", "uri": f"sqlite:///{self._folder()}/{DATABASE}"}
        elif self.catalog.startswith(("http://", "https://")):
            properties |= {"type": "rest", "uri": self.catalog}
        elif ":" in self.catalog:
            properties |= {"type": "sql", "uri": self.catalog}
        return properties | dict(self.settings)

    def _folder(self) -> str:
        if self.warehouse is None:
            raise errors.InvalidRequest(
                "no warehouse and no catalog: give one of them (--warehouse, --catalog)"
            )
        folder = find_folder(self.warehouse)
        if folder is None:
            raise errors.InvalidRequest(
                f"{self.warehouse} is not a directory and cannot contain a catalog file: give a "
                "catalog, such as sqlite:////path/catalog.db or http://host/iceberg"
            )
        return folder

    @property
    def place(self) -> str:
        """The location for messages and the output registry, without a password."""
        if self.warehouse is not None:
            return hide_user(absolute(self.warehouse))
        return hide_user(self.catalog or NAME)

    def how(self) -> tuple[tuple[str, str], ...]:
        """Returns the settings that open the catalog again, without credentials."""
        properties = {} if self.catalog is None else {"catalog": hide_user(self.catalog)}
        if self.warehouse is not None:
            properties["warehouse"] = absolute(self.warehouse)
        settings = {name: text for name, text in self.settings if not _SECRET.search(name)}
        properties |= {f"setting.{name}": hide_user(text) for name, text in settings.items()}
        return tuple(sorted(properties.items()))

    @classmethod
    def of_how(cls, how: Mapping[str, str], extra_settings: Mapping[str, str]) -> "CatalogAddress":
        """Restores the address of a registered output; `extra_settings` are credentials."""
        registered = {
            name.removeprefix("setting."): text
            for name, text in how.items()
            if name.startswith("setting.")
        }
        settings = tuple(sorted({**registered, **extra_settings}.items()))
        return cls(how.get("warehouse"), how.get("catalog"), settings)

    def open(self) -> Catalog:
        """Opens the catalog; creates it if missing."""
        with translate_open_errors(self.place):
            if self.catalog is None:
                os.makedirs(self._folder(), exist_ok=True)
            return load_catalog(self._name, **self.properties())

    def open_existing(self) -> Catalog:
        """Opens an existing catalog; raises NotFound if it is missing."""
        with translate_open_errors(self.place):
            missing = self._find_missing()
            if missing is not None:
                raise errors.NotFound(
                    f"the catalog {missing} is missing: mount or restore it; varve does not create "
                    "an empty one instead"
                )
            return load_catalog(self._name, **{_INIT_TABLES: "false", **self.properties()})

    def check(self) -> None:
        """Raises the errors of opening the catalog; does not create a missing one."""
        with translate_open_errors(self.place):
            missing = self._find_missing()
        if missing is None:
            close = getattr(self.open_existing(), "close", None)
            if close is not None:
                close()

    @property
    def _name(self) -> str:
        is_named = self.catalog is not None and ":" not in self.catalog
        return self.catalog if is_named and self.catalog else NAME

    def _find_missing(self) -> str | None:
        """Returns the file of a SQLite catalog if it is missing; else None."""
        configured = Config().get_catalog_config(self._name) or {}
        uri = self.properties().get("uri") or configured.get("uri")
        if uri is None and not configured:
            raise errors.NotFound(
                f"pyiceberg's configuration has no catalog {self._name}: write a URI, http://..., "
                "sqlite:////path or postgresql://..., or add the catalog to .pyiceberg.yaml"
            )
        if not isinstance(uri, str) or not uri.startswith("sqlite"):
            return None
        path = make_url(uri).database
        is_file = bool(path) and path != ":memory:"
        return path if is_file and path and not os.path.exists(path) else None


def absolute(url: str) -> str:
    """Makes a path an absolute URL: executors may have another working directory."""
    folder = find_folder(url)
    return url if folder is None else f"file://{folder}"


def find_folder(url: str) -> str | None:
    """Returns the directory of a file URL or path; None for an object store."""
    if "://" in url and not url.startswith("file://"):
        return None
    path = os.path.abspath(re.sub("^/+", "/", url.removeprefix("file:")))
    if _URL_SYNTAX.search(path):
        raise errors.InvalidRequest(
            f"{path}: the path contains %, ? or #, which have a meaning in the URLs of a table's "
            "files: choose another directory"
        )
    return path


def hide_user(url: str) -> str:
    """Removes the password from a URL."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user.partition(':')[0]}@{host}"))


def split_name(name: str) -> tuple[str, str]:
    """Splits `NAMESPACE.NAME`; raises InvalidRequest."""
    namespace, dot, table = name.rpartition(".")
    parts = name.split(".")
    if not dot or not all(parts) or not name.isprintable() or _NOT_IN_NAMES.search(name):
        raise errors.InvalidRequest(
            f"{name!r:.200} is not a table name: write NAMESPACE.NAME, without slashes and quotes"
        )
    longest = max(len(part.encode()) for part in parts)
    if longest > _NAME_BYTES_MAX:
        raise errors.InvalidRequest(
            f"{name!r:.80}...: a part of the table name has {longest} bytes, the limit is "
            f"{_NAME_BYTES_MAX}: directories have that name"
        )
    return namespace, table


def find_table(catalog: Catalog, name: str) -> Table | None:
    with translate_open_errors(name):
        try:
            return catalog.load_table(name)
        except iceberg_errors.NoSuchTableError:
            return None


def get_table(catalog: Catalog, name: str) -> Table:
    table = find_table(catalog, name)
    if table is None:
        raise errors.NotFound(f"the catalog {catalog.name} has no table {name}")
    return table


def make_namespace(catalog: Catalog, name: str) -> None:
    with translate_catalog_errors(name):
        try:
            if not catalog.namespace_exists(name):
                catalog.create_namespace(name)
        except iceberg_errors.NamespaceAlreadyExistsError:
            return


def describe_table(table: Table) -> str:
    """The name of a table in messages."""
    return f"table {'.'.join(table.name())}"


@contextmanager
def translate_catalog_errors(where: str | Table) -> Iterator[None]:
    """Translates errors of catalogs, warehouses and the network to a StoreError with one line."""
    where = where if isinstance(where, str) else describe_table(where)
    try:
        yield
    except errors.StoreError:
        raise
    except _DENIED as error:
        raise errors.StoreDenied(f"{where}: the catalog denied access: {_line(error)}") from error
    except (
        iceberg_errors.ServerError,
        iceberg_errors.ServiceUnavailableError,
        iceberg_errors.TooManyRequestsError,
    ) as error:
        raise errors.StoreUnavailable(f"{where}: the catalog failed: {_line(error)}") from error
    except iceberg_errors.RESTError as error:
        raise errors.InvalidRequest(f"{where}: the catalog rejected: {_line(error)}") from error
    except RequestException as error:
        raise errors.StoreUnavailable(
            f"{where}: the catalog cannot be reached{_connection_reason(error)}; check the URL of "
            "--catalog, and that its server runs"
        ) from error
    except SQLAlchemyError as error:
        raise _sql_error(where, error) from error
    except OSError as error:
        raise _file_error(where, error) from error


@contextmanager
def translate_open_errors(where: str) -> Iterator[None]:
    """Translates errors of opening a catalog or table, built-in exceptions included.

    pyiceberg raises them for an unknown type, a missing setting or unreadable metadata.
    """
    try:
        with translate_catalog_errors(where):
            yield
    except (
        ValueError,
        KeyError,
        iceberg_errors.NoSuchPropertyException,
        iceberg_errors.NotInstalledError,
    ) as error:
        raise errors.InvalidRequest(f"{where}: {type(error).__name__}: {_line(error)}") from error


def _sql_error(where: str, error: SQLAlchemyError) -> errors.StoreError:
    line = _line(getattr(error, "orig", None) or error)
    if "not a database" in line or "malformed" in line:
        return errors.Corrupt(
            f"{where}: the catalog's database is damaged ({line}): restore it from a copy"
        )
    if "no such table" in line or _NOT_FOUND_WORDS.search(line):
        return errors.NotFound(
            f"{where}: the catalog's database contains no catalog ({line}): restore it from a "
            "copy; varve does not create an empty one instead"
        )
    if _DENIED_WORDS.search(line):
        return errors.StoreDenied(f"{where}: the catalog's database denied access: {line}")
    if isinstance(error, DatabaseError):
        return errors.StoreUnavailable(f"{where}: the catalog's database: {line}")
    return errors.InvalidRequest(f"{where}: the catalog's database: {line}")


def _file_error(where: str, error: OSError) -> errors.StoreError:
    line = _line(error)
    if isinstance(error, PermissionError) or _DENIED_WORDS.search(line):
        return errors.StoreDenied(f"{where}: no permission to read or write: {line}")
    is_missing = isinstance(error, (FileNotFoundError, NotADirectoryError, FileExistsError))
    if is_missing or _NOT_FOUND_WORDS.search(line):
        return errors.NotFound(f"{where}: {line}")
    return errors.StoreUnavailable(f"{where}: {line}")


def _connection_reason(error: BaseException) -> str:
    """The reason that the system gives, in parentheses; without what `requests` adds."""
    reason = re.search(r"\[Errno -?[0-9]+\] ([A-Za-z ]+)", str(error))
    return "" if reason is None else f" ({reason[1]})"


def _line(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:400]
