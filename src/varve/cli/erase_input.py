"""What `varve job erase` is given, as the job takes it: keys, values, times, and where to look."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, BinaryIO, Final

from varve.cli.job_options import find_address
from varve.cli.tier_access import check_manifests_beside, find_tiered, split_settings
from varve.disk import RealFileSystem
from varve.embedded.tier_location import TIER_FILE, read_location
from varve.foundation.errors import InvalidRequest
from varve.foundation.units import parse_time

if TYPE_CHECKING:
    from varve.jobs.erase.receipt import SigningKey
    from varve.jobs.erase.request import FieldMatch
    from varve.jobs.tier.bucket import Bucket

PASSPHRASE_VARIABLE: Final = "VARVE_SIGN_PASSPHRASE"
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Where:
    """The bucket, with the store that mirrors it, and the log directories; each may be missing."""

    address: "Bucket | None"
    directories: tuple[str, ...]


def find_where(
    url: str,
    settings: list[str],
    mirror_url: str,
    directories: Sequence[str],
    cluster: str | None,
    *,
    topics: Sequence[str] = (),
) -> Where:
    """Where to erase; a log directory tells its bucket. Raises InvalidRequest for nowhere.

    So it does for topics that are in the cold tier where no directory tells where that is.
    """
    fs = RealFileSystem()
    for directory in directories:
        if not fs.exists(directory):
            raise InvalidRequest(f"log directory {directory} does not exist")
    places = {one: place for one in directories if (place := read_location(fs, one)) is not None}
    first = next(iter(places), directories[0] if directories else None)
    place = places.get(first or "")
    if not url and place is None:
        if first is None:
            raise InvalidRequest(
                "give the object store with --store, or a log directory with --dir"
            )
        _check_local(fs, directories, topics)
        return Where(None, tuple(directories))
    if place is not None and first is not None and not url:
        check_manifests_beside(place, first)
    if cluster is None and first is not None and place is not None:
        from varve.tiering.restore import read_cluster

        cluster = read_cluster(fs, first)
    mirror = mirror_url or ("" if place is None else place.mirror)
    address = find_address(url, settings, first, cluster)
    if mirror:
        mirror_settings = tuple(split_settings(settings)[1].items())
        address = replace(address, mirror_url=mirror, mirror_settings=mirror_settings)
    return Where(address, tuple(directories))


def _check_local(fs: RealFileSystem, directories: Sequence[str], topics: Sequence[str]) -> None:
    tiered = {name for directory in directories for name in find_tiered(fs, directory)}
    if found := tiered & set(topics):
        raise InvalidRequest(
            f"{', '.join(sorted(found))}: remote.storage.enable is set, and no {TIER_FILE} of the "
            "log directories tells where the cold tier is: give it with --store; if nothing was "
            "ever copied there take the setting off"
        )


def read_wanted_keys(keys: Sequence[str], path: str | None) -> frozenset[bytes]:
    """The keys that are named and those of a file."""
    from varve.jobs.erase.request import parse_key, read_keys

    found = frozenset(parse_key(key, "--key") for key in keys)
    if path is None:
        return found
    with _open(path) as file:
        return found | read_keys(file, path)


def read_field(
    path: str | None, values: Sequence[str], values_file: str | None, format: str
) -> "FieldMatch | None":
    """The field and its values; None where none is named."""
    from varve.jobs.erase.request import FieldMatch, ValueFormat, read_values

    if path is None:
        if values or values_file is not None:
            raise InvalidRequest("--value needs --field, which names where it stands")
        return None
    if format not in tuple(ValueFormat):
        raise InvalidRequest(f"--format {format!r:.40} is none of {', '.join(ValueFormat)}")
    if not all(values):
        raise InvalidRequest(
            "--value is empty, as that of an unset variable: an empty value is not looked for"
        )
    wanted = list(values)
    if values_file is not None:
        with _open(values_file) as file:
            wanted += read_values(file, values_file)
    return FieldMatch.of(path, wanted, ValueFormat(format))


def read_signing_key(path: str | None) -> "SigningKey | None":
    """The key that signs; its passphrase comes by the environment."""
    from varve.jobs.erase.receipt import SigningKey

    if path is None:
        return None
    given = os.environ.get(PASSPHRASE_VARIABLE)
    with _open(path) as file:
        data = file.read()
    return SigningKey.read(data, passphrase=given.encode() if given else None, where=path)


def read_bytes(path: str) -> bytes:
    with _open(path) as file:
        return file.read()


def _open(path: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except OSError as error:
        raise InvalidRequest(f"{path}: {error.strerror}") from None


def parse_asked(text: str | None, now_ms: int) -> int:
    """When it was asked for, which is not to come; now where it is not told."""
    asked_ms = now_ms if text is None else parse_time(text, name="--asked")
    if asked_ms > now_ms:
        raise InvalidRequest(f"--asked {text!r:.40} is to come: give when it was asked for")
    return asked_ms


def parse_deadline(text: str | None, asked_ms: int) -> int | None:
    """A number of days from when it was asked, or a time."""
    if text is None:
        return None
    if text.isascii() and text.isdigit() and len(text) <= 6:
        return asked_ms + int(text) * _DAY_MS
    return parse_time(text, name="--deadline")
