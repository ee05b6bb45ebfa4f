"""A receipt as a page for people: one file of HTML that needs nothing else.

Invariant  whatever the document holds is shown as text. The page is no proof itself: the document
           and its signature are.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

from varve.jobs.erase.receipt import SIGNATURE

_STYLE: Final = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 60rem; margin: 3rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2.2rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .3rem .6rem; border-bottom: 1px solid #ddd;
  vertical-align: top; overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; }
code { font-size: .85em; overflow-wrap: anywhere; }
.ok { color: #176b2c; } .missed { color: #a11; }
summary { cursor: pointer; margin: .6rem 0; }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd; }
  th, td { border-color: #444; } .ok { color: #6c6; } .missed { color: #f77; } }
"""


def render_receipt(document: dict[str, Any]) -> str:
    """The page of a receipt."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>Erasure {escape(str(document['erasure']))}</title>",
        f"<style>{_STYLE}</style></head><body>",
        *_render_head(document),
        *_render_request(document["request"]),
        *_render_done(document["topics"]),
        *_render_rescan(document["rescan"]),
        "<h2>Out of reach</h2>",
        _list(document["out_of_reach"]),
        *_render_signature(document.get(SIGNATURE)),
        *_render_document(document),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _render_head(document: dict[str, Any]) -> list[str]:
    met = document["deadline_met"]
    deadline = "none was set"
    if met is not None:
        word, style = ("met", "ok") if met else ("missed", "missed")
        deadline = f'{_moment(document["deadline_ms"])}, <b class="{style}">{word}</b>'
    rows = [
        ("Erasure", f"<code>{escape(str(document['erasure']))}</code>"),
        ("Asked", _moment(document["asked_ms"])),
        ("Begun", _moment(document["began_ms"])),
        ("Finished", _moment(document["finished_ms"])),
        ("Deadline", deadline),
        ("Object store", escape(str(document["store"] or "none"))),
        ("Log directories", escape(", ".join(document["directories"]) or "none")),
        ("Records erased", f"{document['records']:,}, each counted on every tier that held it"),
    ]
    return ["<h1>Receipt of an erasure</h1>", _pairs(rows)]


def _render_request(request: dict[str, Any]) -> list[str]:
    rows = [("Topics", escape(", ".join(request["topics"])))]
    if "keys" in request:
        rows.append(("Keys", f"{request['keys']['count']:,}"))
    if "field" in request:
        field = request["field"]
        rows.append(("Field", f"<code>{escape(field['path'])}</code> in {escape(field['format'])}"))
        rows.append(("Values", f"{field['values']['count']:,}"))
    told = (
        "Keys and values are not written here. Where digests are listed, each is the HMAC-SHA-256 "
        "of a key or value under the salt beside them: who knows one can tell that it was asked "
        "for."
    )
    return ["<h2>What was asked</h2>", _pairs(rows), f"<p>{told}</p>"]


def _render_done(topics: Sequence[dict[str, Any]]) -> list[str]:
    parts = ["<h2>What was done</h2>"]
    for topic in topics:
        name = f"{escape(topic['topic'])} <code>{escape(topic['topic_id'])}</code>"
        rows = [
            (
                str(one["partition"]),
                escape(one["tier"]),
                f"{one['segments']:,}",
                f"{one['records']:,}",
                f"{one['bytes']:,}",
            )
            for one in topic["partitions"]
        ]
        parts += [
            f"<h3>{name}</h3>",
            _table(("partition", "tier", "segments", "records", "bytes"), rows, numbers=(2, 3, 4)),
        ]
        changed = [one for part in topic["partitions"] for one in part["objects"]]
        if changed:
            parts.append(_render_objects(changed))
        for output in topic["outputs"]:
            files = len(output["files_before"])
            parts.append(
                f"<p><code>{escape(output['output'])}</code>: {output['rows']:,} rows from "
                f"{files:,} files</p>"
            )
    return parts


def _render_objects(changes: Sequence[dict[str, Any]]) -> str:
    rows = [
        (f"<code>{_object(one['before'])}</code>", f"<code>{_object(one['after'])}</code>")
        for one in changes
    ]
    return (
        f"<details><summary>{len(rows):,} objects and files before and after</summary>"
        f"{_table(('before', 'after'), rows)}</details>"
    )


def _object(one: dict[str, Any]) -> str:
    words = [f"{name} {one[name]}" for name in ("crc32c", "etag", "version") if name in one]
    return escape(f"{one['key']}, {one['size']:,} bytes, {', '.join(words)}")


def _render_rescan(rescan: dict[str, Any]) -> list[str]:
    how = "all data" if rescan["mode"] == "full" else "key indexes where they tell, data elsewhere"
    rows = [
        ("Read", how),
        ("Objects", f"{rescan['objects']:,}"),
        ("Files", f"{rescan['files']:,}"),
        ("OutputRegistry", f"{rescan['outputs']:,}"),
        ("Bytes", f"{rescan['bytes']:,}"),
        ("Records", f"{rescan['records']:,}"),
        ("Found", f'<b class="ok">{rescan["found"]:,}</b>'),
    ]
    return ["<h2>What was read again afterwards</h2>", _pairs(rows)]


def _render_signature(signature: dict[str, Any] | None) -> list[str]:
    if signature is None:
        return ["<h2>Signature</h2>", "<p>The receipt is not signed.</p>"]
    rows = [
        ("Algorithm", escape(signature["algorithm"])),
        ("Public key", f"<code>{escape(signature['public_key'])}</code>"),
        ("Value", f"<code>{escape(signature['value'])}</code>"),
    ]
    told = (
        "It is over the document below, not over this page: "
        "<code>varve job erase --verify-receipt</code> checks it."
    )
    return ["<h2>Signature</h2>", _pairs(rows), f"<p>{told}</p>"]


def _render_document(document: dict[str, Any]) -> list[str]:
    text = escape(json.dumps(document, indent=1, ensure_ascii=False))
    return [f"<details><summary>The document</summary><pre><code>{text}</code></pre></details>"]


def _moment(at_ms: int | None) -> str:
    if at_ms is None:
        return "not told"
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _pairs(rows: Iterable[tuple[str, str]]) -> str:
    cells = "".join(f"<tr><th>{escape(name)}</th><td>{text}</td></tr>" for name, text in rows)
    return f"<table>{cells}</table>"


def _table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=number' if place in numbers else ''}>{text}</{tag}>"
            for place, text in enumerate(row)
        )

    head = cells([escape(one) for one in columns], "th")
    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _list(texts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in texts)}</ul>"
