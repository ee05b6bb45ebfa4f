"""Mistakes that people make: each is answered by one sentence, whose remedy exists.

A line is a command as typed; after ` < ` follows its standard input.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

import varve
from tests.unit.cli.test_mentioned_commands import find_fault
from varve.cli.main import app

MISTAKES: Final = r"""
topics
topic lst
topic create
topic create orders -d data
topic create orders -d file
topic create bad/name -d data
topic create x -d data --partitions many
topic create x -d data --partitions 0
topic create x -d data -s nosuch=1
topic create x -d data -s retention.ms=soon
topic create x -d data -s retention.ms=7dd
topic create x -d data -s segment.bytes=64MiX
topic create x -d data -s segment.bytes=1
topic create x -d data -s cleanup.policy=compress
topic create x -d data -s retention
topic create x -d data --replicas 3
topic create x -d data --dry-run
topic create x -d data -b localhost:1
topic create x -d ''
topic list -d nosuch
topic list -d file
topic list -d empty
topic list -d data/orders-0
topic list -b localhost:1
topic list -b 127.0.0.1
topic list -b 127.0.0.1:many
topic list --command-config nosuch
topic list --command-config latin
topic list --command-config odd.properties
topic list -X nonsense
topic list -X no.such.setting=1
topic list -X security.protocol=TLS
topic describe nosuch -d data
topic describe orders -d data --at yesterday
topic describe orders -d data --at end
topic describe orders -d data --at 5
topic alter orders -d data
topic alter nosuch -d data -s retention.ms=7d
topic alter orders -d data -s retention.ms=7d --unset retention.ms
topic alter orders -d data --partitions 1
topic alter orders -d data --unset nosuch
topic alter orders -d data -s retention.ms=7d --dry-run
topic delete nosuch -d data --yes
topic delete orders -d data
topic delete-records orders -d data -p 0 --before 99 --yes
topic delete-records orders -d data --before 1 --yes
topic delete-records orders -d data -p 7 --before 1 --yes
topic delete-records orders -d data -p 0 --before soon --yes
produce nosuch -d data < x
produce orders nosuchfile -d data
produce orders empty -d data
produce orders -d data --input jsonn < x
produce orders -d data --input json < x
produce orders -d data --input json < {"key":1}
produce orders -d data --input json < {"timestamp":"now"}
produce orders -d data --input json < {"value":"x","nosuch":"y"}
produce orders -d data --codec zip < x
produce orders -d data --acks 2 < x
produce orders -d data --acks all < x
produce orders -d data -p 9 < x
produce orders -d data -K '' < x
produce orders -d data -K = < novalue
produce orders -d data --header =x < x
produce orders -d data --input %k < x
produce orders -d data --input %z%v < x
produce orders -d data --input files
produce state -d data < x
consume nosuch -d data
consume orders -d data --from soon
consume orders -d data --from 5
consume orders -d data --from -5x
consume orders -d data --from -1h30
consume orders -d data --from 2026-13-01
consume orders -d data --from 0 --last 5
consume orders -d data -p 9
consume orders -d data -n many
consume orders -d data --follow
consume orders -d data --template %q
consume orders -d data --template %v --json
consume orders -d data -g g --from 5
consume orders -d data --isolation committed
consume orders -b localhost:1
get nosuch k -d data
get orders nosuch -d data
get state nosuch -d data
get state zz --key-encoding hex -d data
get state k
get state k -d data -p 4
group list -b localhost:1
group describe g -d data
clean orders -b localhost:9092
get state k -b localhost:9092
group reset-offsets g --to soon
group delete
acl add
acl add --principal alice --operation read --topic t -b localhost:1
acl add --principal User:a --operation reed --topic t -b localhost:1
acl add --principal User:a --operation read -b localhost:1
acl delete -b localhost:1
user add
user add alice
user add alice -b localhost:1
user add alice -d data --mechanism MD5
user add alice -d data --iterations 5
user delete alice -b localhost:1
dump
dump data --records --values --key-decoder nosuch
dump data/orders-0 --max-bytes many
check -d nosuch
check nosuch
check data
check -d data --allow-data-loss
check -d data --repair --no-lock
check -d file
clean nosuch -d data
clean orders:9 -d data
clean orders:x -d data
explain orders -d data --offset 5
explain orders:0 -d data --offset 99
explain orders -d data --key nosuch
explain nosuch -d data
explain orders -d data --key a --offset 5
forecast nosuch -d data
forecast -d data -s retention.ms=soon
forecast -d data -s nosuch=1
audit nosuch -d data
audit -d data --head zz
metrics -d nosuch
tier status -d data --store bogus://x
tier copy -d data --store bogus://x
tier copy -d data --store s3:bucket
tier copy orders -d data
tier copy -d data --max-bytes-per-second fast
tier copy -d data --max-bytes-per-second 0
tier restore new -d new --store file:empty
tier restore new -d data --store file:nosuch
tier restore new -d data
tier restore orders -d data --store file:empty --at soon
tier restore orders -d data --store file:empty --at 0
tier fsck -d data
tier fsck
tier fsck --store file:nosuch
tier fsck --store file:empty
tier fsck --store bogus://x
tier fsck --store file:empty --keep-versions 7d
tier fsck --store file:empty --sweep
tier mirror -d data
tier mirror -d data --delete-extra
dedup run orders --to x -d data
dedup run orders --to x --by id --window 10m -d data
dedup run orders --to x --by key -d data
dedup run orders --to x --by key --window 10 -d data
dedup run orders --to x --by key --window ten -d data
dedup run orders --to orders --by key --window 10m -d data
dedup run nosuch --to x --by key --window 10m -d data
dedup run orders --to x --by key --window 10m --late maybe -d data
dedup run orders --to x --by key --window 10m --chunk-bytes big -d data
dedup status nosuch -d data
dedup explain nosuch --offset 5 -d data
dedup explain nosuch -d data
shape list -u http://127.0.0.1:1
shape list -u localhost
shape list -u ftp://x
shape tail orders --where 'a >' -u http://127.0.0.1:1
shape delete x -u http://127.0.0.1:1
serve -d data -s nosuch=1
job query
job query orders
job query nosuch -d data
job query orders -d nosuch
job query orders -d data --format parquet
job query orders -d data --from soon
job query orders -d data --from '{"0":"x"}'
job query orders -d data --option nosuch=1
job query orders -d data --sql x --where y
job query orders --store bogus://x
job query orders --store file:nosuch
job compact -d data
job compact orders -d data
job compact nosuch -d data
job compact --store file:nosuch
job verify -d data
job verify --store file:nosuch
job verify --store file:empty
job snapshot orders -d data
job snapshot orders -d data --to file
job snapshot nosuch -d data --to snaps
job snapshot orders -d data --to bogus://x
job snapshot orders -d data --to snaps --keep 0
job table orders -d data
job table orders --to noname -d data
job table orders --to a.b -d data --schema nosuch
job table orders --to a.b -d data --format avro
job table orders --to a.b -d data --mode sometimes
job table orders --to a.b -d data --catalog http://127.0.0.1:1
job dedup orders -d data --to x --by key --checkpoint ck
job dedup orders -d data --to x --by key --window 10m
job dedup orders -d data --to table:x --by key --window 10m --checkpoint ck
job erase orders -d data
job erase orders -d data --key a
job erase orders -d data --key hex:zz --yes
job erase orders -d data --keys-file nosuch --yes
job erase orders -d data --keys-file keys.bin --yes
job erase orders -d data --field a --yes
job erase orders -d data --key a --deadline 30 --yes
job erase orders -d data --key a --requested 2999-01-01 --yes
job erase orders -d data --key a --finish --yes
job erase orders -d data --key a --sign-key file --yes
job erase orders -d data --key a --receipt nosuch/x --yes
job erase nosuch -d data --key a --yes
job due -d nosuch
job report nosuch
job report file
job report bad.json
job report empty
job demo -d data
snapshot list nosuch
snapshot list file
snapshot verify empty
snapshot prune empty
snapshot prune empty --keep 0
table expire orders --older-than 7d
table expire a.b --older-than 7d --warehouse nosuch
table expire a.b --older-than 7 --warehouse nosuch
output list nosuch -d data
output forget orders nosuch -d data --yes
receipt verify nosuch --public-key nosuch
receipt verify bad.json --public-key file
demo -d data
demo --records 5
help
version
consume
consume orders -d data -x
consume orders extra -d data
consume orders -d data --form 5
topic list --json=yes -d data
"""
_LIBRARY_TEXTS: Final = re.compile(
    r"\[Errno|codec can't|Input should be|valid integer|Value error|HTTPConnectionPool|Traceback|"
    r"https?://crypto|\.py\b|\bat org\.|java\.|object has no attribute"
)
"""Texts of Python, Java and libraries, which say nothing to a user of the command line."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("mistakes")
    with varve.open(root / "data", maintain=False) as store:
        store.create_topic("orders", partitions=2).append_many([(b"a", b"1"), (b"b", b"2")])
        store.create_topic("state", settings={"cleanup.policy": "compact"}).append("x", key="k")
    for directory in ("empty", "tables"):
        (root / directory).mkdir()
    (root / "file").write_text("hello\n")
    (root / "latin").write_bytes(b"bootstrap.servers=\xff\xfe\n")
    (root / "bad.json").write_text("{nope")
    (root / "odd.properties").write_text("just words\n")
    (root / "unknown.properties").write_text("log.dirz=/x\n")
    (root / "keys.bin").write_bytes(b"\xff\xfe\x00")
    return root


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_sentence_with_a_remedy_that_exists(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith("VARVE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(place)
    words, _, given = line.partition(" < ")
    result = CliRunner().invoke(app, shlex.split(words), input=f"{given}\n")
    assert result.exit_code in (1, 2), result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    lines = [text for text in result.stderr.splitlines() if text]
    usage = [text for text in lines if text.startswith(("Usage:", "Try "))]
    assert len(lines) == len(usage) + 1, result.stderr
    message = lines[-1]
    assert message.startswith(("error: ", "Error: "))
    assert len(message) <= 700
    assert not _LIBRARY_TEXTS.search(message), message
    for mentioned in re.findall(r"`varve ([^`]+)`", message):
        assert find_fault(mentioned.split()) is None, message


def test_there_are_many() -> None:
    assert len(MISTAKES.strip().splitlines()) >= 200
