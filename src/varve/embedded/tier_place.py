"""Where the cold tier of a store is: told once, and remembered beside the logs.

Layout     `varve-tier.json` in every log directory: {"format": 1, "url": "..."}.
Invariant  what is copied stays where readers look for it: another URL than the remembered one is
           refused. No secret is written; credentials come from settings or the environment.
Crash      written before anything is copied; any directory's file tells.
"""

import json
import os
from collections.abc import Sequence
from typing import Final

from varve.commit_log import LogDirectory
from varve.disk import FileSystem, RealFileSystem, write_atomically
from varve.foundation.errors import Corrupt, InvalidSetting

TIER_FILE: Final = "varve-tier.json"
_FORMAT: Final = 1


def find_tier_url(fs: FileSystem, directories: Sequence[LogDirectory], given: str) -> str:
    """The URL of a store's cold tier: the one given, remembered, or a directory beside the logs.

    Raises InvalidSetting for one that is not the remembered one.
    """
    remembered = _read(fs, directories)
    if given and remembered and given != remembered:
        raise InvalidSetting(
            f"varve.tier.url is {given}, but the cold tier of {directories[0].path} is "
            f"{remembered}: leave the setting out, or copy all objects to the new place and write "
            f"its URL into {TIER_FILE} of every log directory"
        )
    if given or remembered:
        return given or remembered
    if not isinstance(fs, RealFileSystem):
        raise InvalidSetting(
            "a store that is not on a real disk has no default place for its cold tier: set "
            "varve.tier.url, or give an object store to `open`"
        )
    return f"file:{os.path.abspath(directories[0].path)}.cold"


def remember_tier_url(fs: FileSystem, directories: Sequence[LogDirectory], url: str) -> None:
    """Writes the URL to every directory that does not have it; an empty one is nowhere."""
    if not url:
        return
    data = json.dumps({"format": _FORMAT, "url": url}).encode() + b"\n"
    for directory in directories:
        path = f"{directory.path}/{TIER_FILE}"
        if directory.failure is None and _read_file(fs, path) != url:
            write_atomically(fs, path, data)


def _read(fs: FileSystem, directories: Sequence[LogDirectory]) -> str:
    for directory in directories:
        url = _read_file(fs, f"{directory.path}/{TIER_FILE}")
        if url:
            return url
    return ""


def _read_file(fs: FileSystem, path: str) -> str:
    try:
        document = json.loads(fs.read(path))
    except OSError:  # missing, or its directory goes offline
        return ""
    except ValueError:
        document = None
    if not isinstance(document, dict) or document.get("format") != _FORMAT:
        raise Corrupt(
            f"{path} does not tell where the cold tier is: write "
            f'{{"format": {_FORMAT}, "url": "..."}} with the URL of its object store'
        )
    return str(document.get("url", ""))
