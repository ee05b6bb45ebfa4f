"""Every module that writes files or objects says what of a record is in them, and who erases it.

A new one fails here until it is listed, and one with data of records also until an erasure reaches
it: as an output that is registered, or with the log. docs/how-to/erase-a-person.md has the list.
"""

import ast
from enum import StrEnum
from functools import cache
from pathlib import Path

from varve.topics.outputs import OutputKind

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "varve"


class Reach(StrEnum):
    """What is written, and how an erasure reaches it."""

    NOTHING = "no key and no value: offsets, settings, positions, digests, locks"
    LOG = "segments and indexes of a topic: rewritten and read again"
    BUCKET = "objects of a topic: rewritten, deleted and read again"
    OUTPUT = "an output of a kind that is registered"
    SERVED_IDS = "ids of a served topic: removed with every erasure of its log"
    SCRATCH = "temporary files: removed when the job ends, or before the next erasure"
    STAGED = "batches that a sink has not committed yet: named where they are left"
    STATE_TOPIC = "group offsets and transactions: what clients give, no record"
    COPY = "a log directory that a restore fills: registered, and erased when it is given"
    USER = "a file that the user names, or topics and tables that the user fills"
    LAYER = "an access layer: what is written is said where it is called"


PLACES = {
    "broker/admin": Reach.USER,
    "broker/data/metadata.py": Reach.USER,
    "broker/dedup": Reach.SERVED_IDS,
    "broker/security": Reach.NOTHING,
    "broker/state_topic.py": Reach.STATE_TOPIC,
    "brokers": Reach.USER,
    "cleaning/compaction": Reach.LOG,
    "cleaning/key_index": Reach.LOG,
    "cleaning/removals": Reach.NOTHING,
    "cli": Reach.USER,
    "commit_log": Reach.LOG,
    "commit_log/offset_checkpoints.py": Reach.NOTHING,
    "dedup/backend.py": Reach.OUTPUT,
    "disk": Reach.LAYER,
    "embedded": Reach.NOTHING,
    "embedded/offline_tier.py": Reach.COPY,
    "http/shapes/launch.py": Reach.OUTPUT,
    "jobs/compact": Reach.BUCKET,
    "jobs/erase/receipt.py": Reach.NOTHING,
    "jobs/erase/remote.py": Reach.BUCKET,
    "jobs/erase/result.py": Reach.SCRATCH,
    "jobs/key_plans.py": Reach.SCRATCH,
    "jobs/sink/sink_state.py": Reach.NOTHING,
    "jobs/sink/staging.py": Reach.STAGED,
    "jobs/sink/target.py": Reach.USER,
    "jobs/snapshot": Reach.OUTPUT,
    "jobs/source": Reach.SCRATCH,
    "jobs/table": Reach.OUTPUT,
    "jobs/tier": Reach.SCRATCH,
    "jobs/verify": Reach.SCRATCH,
    "object_store": Reach.LAYER,
    "kafka_server/responses.py": Reach.NOTHING,
    "kafka_server/tls.py": Reach.NOTHING,
    "rocks": Reach.LAYER,
    "shapes": Reach.OUTPUT,
    "spark/console.py": Reach.NOTHING,
    "spark/deduplication": Reach.OUTPUT,
    "tiering/read": Reach.LOG,
    "tiering/restore.py": Reach.COPY,
    "tiering": Reach.BUCKET,
    "topics/outputs.py": Reach.NOTHING,
    "topics": Reach.LAYER,
    "windows": Reach.USER,
}
"""By module or package below `src/varve`; the longest name that fits counts."""

_WRITES = {
    "create_topic",
    "find_or_create",
    "make_directory",
    "make_durable_directory",
    "makedirs",
    "mkdir",
    "mkdtemp",
    "mkstemp",
    "open_writable",
    "Rdict",
    "put_if_absent",
    "NamedTemporaryFile",
    "SpooledTemporaryFile",
    "TemporaryDirectory",
    "TemporaryFile",
    "write_atomically",
    "write_bytes",
    "write_text",
}
_MODES = "wax+"


def _is_write(call: ast.Call) -> bool:
    function = call.func
    name = getattr(function, "attr", getattr(function, "id", ""))
    match name:
        case "open":
            return _is_opened_to_write(call)
        case "connect":
            return ast.unparse(function) == "sqlite3.connect"
        case "put":
            return len(call.args) > 1  # A queue gets one argument, a store the key and the data.
        case _:
            return name in _WRITES


def _is_opened_to_write(call: ast.Call) -> bool:
    modes = [
        argument.value
        for argument in [*call.args[1:2], *(word.value for word in call.keywords)]
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]
    return any(set(mode) & set(_MODES) and len(mode) <= 3 for mode in modes)


@cache
def find_writers() -> set[str]:
    """The modules that write, by path below the package."""
    return {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and _is_write(node)
    }


def find_reach(module: str) -> Reach | None:
    """What the longest listed name of a module says; None for one that is not listed."""
    fitting = [name for name in PLACES if module == name or module.startswith(f"{name}/")]
    return PLACES[max(fitting, key=len)] if fitting else None


def test_every_module_that_writes_says_how_an_erasure_reaches_it() -> None:
    missing = {module for module in find_writers() if find_reach(module) is None}
    assert missing == set(), "list them in PLACES, and let an erasure reach them"


def test_every_kind_of_output_is_in_the_guide() -> None:
    guide = (ROOT / "docs" / "reference" / "formats" / "outputs.md").read_text()
    assert [kind for kind in OutputKind if f"| `{kind}` |" not in guide] == []
