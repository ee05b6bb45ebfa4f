"""The location of a store's remote tier: set once, and remembered beside the logs.

Layout     `varve-tier.json` in every log directory:
           {"format": 1, "url": "...", "metadata": "object"}, and "mirror": "..." where there is a
           second store. docs/how-to/tier-to-a-bucket.md
           `varve-mirror-level` in every log directory that is online, with the URLs of both stores,
           while the mirror is in sync. Unless all of them have it the stores are compared.
Invariant  a location other than the remembered one is refused, so that readers find the copies;
           only a mirror may be added to a location without one. No secret is written; credentials
           come from settings or the environment.
Crash      written before anything is copied; any directory's file counts, and one with a mirror
           takes precedence. `varve-mirror-level` is removed durably from at least one directory
           before a write that leaves the mirror behind returns; see `varve.object_store.mirror`.
"""

import json
import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from varve.commit_log import LogDirectory
from varve.commit_log.names import META_PROPERTIES_FILE
from varve.disk import FileSystem, RealFileSystem, write_atomically
from varve.embedded.topic_table import find_tiered_topics
from varve.foundation.errors import (
    Corrupt,
    InconsistentClusterId,
    InvalidRequest,
    InvalidSetting,
    Unavailable,
)

logger = logging.getLogger(__name__)

TIER_FILE: Final = "varve-tier.json"
MARK_FILE: Final = "varve-mirror-level"
DEFAULT_METADATA: Final = "object"
_FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class TierLocation:
    """The URL of a tier's object store, its manifest backend, and the URL of its mirror, if any.

    `metadata` is the backend name of `varve.tier.metadata`.
    """

    url: str
    metadata: str
    mirror: str = ""


def find_location(
    fs: FileSystem,
    directories: Sequence[LogDirectory],
    *,
    url: str,
    metadata: str,
    mirror: str = "",
) -> TierLocation:
    """The location from the settings, else the remembered one, else a directory beside the logs.

    An empty string is a setting that is not given. Raises InvalidSetting for a location that
    differs from the remembered one or does not outlast the process, InvalidRequest for a bad URL.
    """
    from varve.object_store.opening import normal_url

    remembered_location = recall_location(fs, [directory.path for directory in directories])
    where = directories[0].path
    url, mirror = (normal_url(setting) if setting else "" for setting in (url, mirror))
    if remembered_location is None:
        location = TierLocation(
            url or _default_url(fs, where), metadata or DEFAULT_METADATA, mirror
        )
        _check_outlasts(fs, location)
        _check_apart(fs, directories, url=location.url, mirror=location.mirror)
        return location
    for name, given, remembered in (
        ("varve.tier.url", url, remembered_location.url),
        ("varve.tier.metadata", metadata, remembered_location.metadata),
        ("varve.tier.mirror.url", mirror, remembered_location.mirror or mirror),
    ):
        check_remembered(name, given, remembered, where)
    location = replace(remembered_location, mirror=remembered_location.mirror or mirror)
    _check_outlasts(fs, location)
    _check_apart(fs, directories, url="", mirror="" if remembered_location.mirror else mirror)
    return location


def _check_outlasts(fs: FileSystem, location: TierLocation) -> None:
    """Raises InvalidSetting for an in-memory store that would hold records of durable logs."""
    for name, url in (("varve.tier.url", location.url), ("varve.tier.mirror.url", location.mirror)):
        if url.startswith("memory:") and isinstance(fs, RealFileSystem):
            raise InvalidSetting(
                f"{name} is {url}, which is gone when this process ends, and with it the records "
                "that left the disk for it: name a store that stays, such as file:/path; a test "
                "gives `objects` to `open`"
            )


def _check_apart(
    fs: FileSystem, directories: Sequence[LogDirectory], *, url: str, mirror: str
) -> None:
    """Raises InvalidSetting for an object directory that overlaps a log directory."""
    from varve.object_store.opening import find_scheme, split_directory

    for name, given in (("varve.tier.url", url), ("varve.tier.mirror.url", mirror)):
        if find_scheme(given) != "file" or not isinstance(fs, RealFileSystem):
            continue
        remote = os.path.realpath(split_directory(given))
        for directory in directories:
            logs = os.path.realpath(directory.path)
            if os.path.commonpath((remote, logs)) in (remote, logs):
                raise InvalidSetting(
                    f"{name} is {given}, and {directory.path} is a log directory: one must not be "
                    "the other or lie inside it, as the files of each would be taken for the "
                    f"other's; name a directory beside it, such as {logs}.cold"
                )


def check_remembered(name: str, given: str, remembered: str, where: str) -> None:
    """Raises InvalidSetting for a given setting that differs from the remembered one."""
    from varve.object_store.opening import hide_secrets, normal_url

    if given and normal_url(given) != normal_url(remembered):
        raise InvalidSetting(
            f"{name} is {hide_secrets(given)}, but the tier of {where} has "
            f"{hide_secrets(remembered)}: leave the setting out, or move all that is there and "
            f"then write the new one into {TIER_FILE} of every log directory"
        )


def _default_url(fs: FileSystem, directory: str) -> str:
    if not isinstance(fs, RealFileSystem):
        raise InvalidSetting(
            "a store that is not on a real disk has no default location for its tier: set "
            "varve.tier.url, or give an object store to `open`"
        )
    return f"file:{quote(os.path.abspath(directory))}.cold"


def remember_location(
    fs: FileSystem, directories: Sequence[LogDirectory], location: TierLocation
) -> None:
    """Writes the location to every directory that does not have it."""
    document = {"format": _FORMAT, "url": location.url, "metadata": location.metadata}
    if location.mirror:
        document["mirror"] = location.mirror
    data = json.dumps(document).encode() + b"\n"
    for directory in directories:
        if directory.failure is None and read_location(fs, directory.path) != location:
            write_atomically(fs, f"{directory.path}/{TIER_FILE}", data)


def read_location(fs: FileSystem, directory: str) -> TierLocation | None:
    """The location that one log directory remembers; None where it does not.

    Raises Unavailable when the file cannot be read.
    """
    path = f"{directory}/{TIER_FILE}"
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be read: {error.strerror}; the location of the tier must be known "
            "before anything is read from it or copied: repair the file and try again"
        ) from error
    return _decode(data, path)


def recall_location(fs: FileSystem, directories: Sequence[str]) -> TierLocation | None:
    """The location that the log directories remember; None when none has the file.

    Segments may have been copied to a remembered location. Raises Unavailable when no readable
    file has one and a file could not be read: with another location the copies would seem lost.
    Raises Corrupt when the directories disagree.
    """
    locations: dict[TierLocation, str] = {}
    failure: Unavailable | None = None
    for directory in directories:
        try:
            location = read_location(fs, directory)
        except Unavailable as error:
            failure = error
            continue
        if location is not None:
            locations.setdefault(location, directory)
    # A crash may have interrupted the addition of a mirror between two directories.
    mirrored = {replace(location, mirror="") for location in locations if location.mirror}
    locations = {location: path for location, path in locations.items() if location not in mirrored}
    if len(locations) > 1:
        listed = ", ".join(
            f"{location.url} by {location.metadata}"
            f"{f', mirrored in {location.mirror},' if location.mirror else ''} ({path})"
            for location, path in locations.items()
        )
        raise Corrupt(
            f"the log directories remember different locations of their tier: {listed}; write the "
            f"right one into {TIER_FILE} of all of them"
        )
    if not locations and failure is not None:
        raise failure
    return next(iter(locations), None)


def check_object_manifests(location: TierLocation, directory: str) -> None:
    """Raises InvalidRequest when the object store alone does not say what its objects are."""
    if location.metadata != DEFAULT_METADATA:
        raise InvalidRequest(
            f"the remote tier of {directory} keeps its manifests by "
            f"varve.tier.metadata={location.metadata}, not beside the objects: this command reads "
            "the object store alone and cannot identify its objects"
        )


def _decode(data: bytes, path: str) -> TierLocation:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    texts: list[Any] = []
    if isinstance(document, dict) and document.get("format") == _FORMAT:
        names = ("url", "metadata", "mirror") if "mirror" in document else ("url", "metadata")
        texts = [document.get(name) for name in names]
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise Corrupt(
            f"{path} does not say where the remote tier is: write "
            f'{{"format": {_FORMAT}, "url": "...", "metadata": "{DEFAULT_METADATA}"}} with the URL '
            "of its object store"
        )
    url, metadata, *mirrors = texts
    return TierLocation(
        _decode_url(url, path), metadata, *(_decode_url(mirror, path) for mirror in mirrors)
    )


def _decode_url(url: str, path: str) -> str:
    """The normal form of a remembered URL; raises Corrupt for an invalid or relative one."""
    from varve.object_store.opening import normal_url

    try:
        if url[:5].lower() == "file:" and not url[5:].startswith("/"):
            raise InvalidRequest(f"{url} is not an absolute path: write file:/path")
        return normal_url(url)
    except InvalidRequest as error:
        raise Corrupt(f"{path} does not say where the remote tier is: {error}") from error


def check_cluster_id_known(fs: FileSystem, directories: Sequence[str]) -> None:
    """Raises InconsistentClusterId when tiered logs have no directory with the cluster id.

    Unreadable files are skipped here: opening the directory reports them.
    """
    if any(fs.exists(f"{directory}/{META_PROPERTIES_FILE}") for directory in directories):
        return
    for directory in directories:
        location = None
        with suppress(OSError):
            if any(entry.is_directory for entry in fs.scan(directory)):
                location = read_location(fs, directory)
        if location is not None:
            raise InconsistentClusterId(
                f"{directory}/{META_PROPERTIES_FILE} is missing, and its cluster.id names the "
                f"objects of the tier: the folder at the top of {location.url} has that name; "
                "recreate the file with the lines version=1, node.id=1 and cluster.id=NAME"
            )


class MirrorInSyncFile:
    """An InSyncFlag in log directories, for two stores by their URLs."""

    def __init__(
        self, fs: FileSystem, directories: Sequence[str], *, url: str, mirror: str
    ) -> None:
        self._fs = fs
        self._directories = directories
        self._data = json.dumps({"url": url, "mirror": mirror}).encode() + b"\n"

    def is_set(self) -> bool:
        try:
            return all(
                self._fs.read(f"{directory}/{MARK_FILE}") == self._data
                for directory in self._directories
            )
        except OSError:
            return False

    def set(self) -> None:
        """A failure is only logged: the next open then compares the stores."""
        for directory in self._directories:
            try:
                write_atomically(self._fs, f"{directory}/{MARK_FILE}", self._data)
            except OSError as error:
                logger.warning(
                    "%(directory)s: mirror state not written, the next open compares the stores: "
                    "%(error)s",
                    {"directory": directory, "error": str(error)},
                )

    def clear(self) -> None:
        """Raises Unavailable when the file cannot be removed from any directory."""
        failure: OSError | None = None
        for directory in self._directories:
            try:
                if self._fs.exists(f"{directory}/{MARK_FILE}"):
                    self._fs.remove(f"{directory}/{MARK_FILE}")
                self._fs.sync_directory(directory)
            except OSError as error:
                failure = error
            else:
                return
        raise Unavailable(
            f"{MARK_FILE} cannot be removed from {', '.join(self._directories)}: {failure}; the "
            "mirror of the tier is out of sync, and the next open must know it: repair the disk"
        ) from failure


def awaits_location(fs: FileSystem, directories: Iterable[str | os.PathLike[str]]) -> bool:
    """Whether topics wait for their first copy, which decides the location of the tier."""
    paths = [os.fspath(path) for path in directories if fs.exists(os.fspath(path))]
    if any(read_location(fs, path) is not None for path in paths):
        return False
    return any(find_tiered_topics(fs, path) for path in paths)
