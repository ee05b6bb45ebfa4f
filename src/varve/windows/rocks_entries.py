"""About how many entries a database of RocksDB has, whoever has it open.

Invariant  the database is opened to be read: its lock is not taken, and nothing in it changes.
"""

from rocksdict import AccessType, Options, Rdict

from varve.windows.rocks_database import rocks_failure


def estimate_entries(path: str) -> int:
    """Those that were flushed; of an entry that was written anew each one counts."""
    try:
        rocks = Rdict(path, Options(raw_mode=True), access_type=AccessType.read_only())
        try:
            found = rocks.property_int_value("rocksdb.estimate-num-keys")
        finally:
            rocks.close()
    except Exception as error:
        raise rocks_failure(error, f"look at {path}") from error
    return found or 0
