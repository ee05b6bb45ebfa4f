"""Mistakes that people make: each is answered by one sentence, whose remedy exists.

A line is a command as typed; after ` < ` follows its standard input, and after ` => ` its exit code
and what the sentence says.
"""

import os
import re
import shlex
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

import varve
from tests.support.varve_command import run_varve
from tests.unit.cli.test_mentioned_commands import find_fault
from varve.cli.main import app
from varve.embedded.topic_table import TOPICS_FILE

MISTAKES: Final = r"""
topics => 2 no command 'topics'. Did you mean `varve topic`?
topic lst
topic create
topic create orders -d data => 1 exists; change its settings with `varve topic alter orders`
topic create orders -d file
topic create bad/name -d data => 1 topic name
topic create x -d data --partitions many
topic create x -d data --partitions 0 => 2 --partitions
topic create x -d data -s nosuch=1 => 1 nosuch
topic create x -d data -s retention.ms=soon
topic create x -d data -s retention.ms=7dd
topic create x -d data -s segment.bytes=64MiX
topic create x -d data -s segment.bytes=1 => 1 14 to
topic create x -d data -s cleanup.policy=compress
topic create x -d data -s retention => 2 NAME=VALUE
topic create x -d data --replicas 3 => 1 a directory keeps one copy
topic create x -d data --dry-run => 1 --dry-run asks a broker
topic create x -d data -b localhost:1
topic create x -d '' => 2 is empty
topic list -d nosuch => 1 there is no log directory
topic list -d file
topic list -d empty => 1 empty is not a log directory: it holds no topics; name another
topic list -d data/orders-0
topic list -b localhost:1 => 1 no broker answers at localhost:1 (Connection refused); start
topic list -b 127.0.0.1
topic list -b 127.0.0.1:many
topic list --command-config nosuch
topic list --command-config latin
topic list --command-config odd.properties
topic list -X nonsense
topic list -X no.such.setting=1 => 1 no.such.setting
topic list -X security.protocol=TLS
topic describe nosuch -d data => 1 there is no topic
topic describe orders -d data --at yesterday
topic describe orders -d data --at end => 2 write a time such as
topic describe orders -d data --at 5
topic alter orders -d data => 2 nothing to change
topic alter nosuch -d data -s retention.ms=7d
topic alter orders -d data -s retention.ms=7d --unset retention.ms
topic alter orders -d data --partitions 1
topic alter orders -d data --unset nosuch => 1 nosuch
topic alter orders -d data -s retention.ms=7d --dry-run => 1 `varve forecast` previews
topic delete nosuch -d data --yes
topic delete orders -d data => 1 add --yes
topic delete-records orders -d data -p 0 --before 99 --yes => 1 high watermark is 2
topic delete-records orders -d data --before 1 --yes => 2 --partition
topic delete-records orders -d data -p 7 --before 1 --yes
topic delete-records orders -d data -p 0 --before soon --yes
produce nosuch -d data < x => 1 there is no topic 'nosuch'; add --create
produce orders nosuchfile -d data
produce orders empty -d data
produce orders -d data --input jsonn < x
produce orders -d data --input json < x
produce orders -d data --input json < {"key":1}
produce orders -d data --input json < {"timestamp":"now"}
produce orders -d data --input json < {"value":"x","nosuch":"y"}
produce orders -d data --codec zip < x => 2 --codec
produce orders -d data --acks 2 < x
produce orders -d data --acks all < x => 2 are for a broker
produce orders -d data -p 9 < x => 1 no partition 9
produce orders -d data -K '' < x
produce orders -d data -K = < novalue
produce orders -d data --header =x < x
produce orders -d data --input %k < x
produce orders -d data --input %z%v < x
produce orders -d data --input files => 2 needs the names of files
produce state -d data < x
consume nosuch -d data => 1 there is no topic 'nosuch' (topics: orders, state)
consume orders -d data --from soon => 2 is not a position: write beginning
consume orders -d data --from 5
consume orders -d data --from -5x
consume orders -d data --from -1h30
consume orders -d data --from 2026-13-01
consume orders -d data --from 0 --last 5
consume orders -d data -p 9 => 1 no partition 9
consume orders -d data -n many
consume orders -d data --follow => 2 need a broker: start one with `varve serve -d
consume orders -d data --template %q
consume orders -d data --template %v --json => 2 exclude each other
consume orders -d data -g g => 2 need a broker: start one with `varve serve
consume orders -d data -g g --from 5 => 2 --group reads from the group's offsets
consume orders -d data --isolation committed => 2 --isolation
consume orders -b localhost:1
get nosuch k -d data
get orders nosuch -d data
get state nosuch -d data
get state zz --key-encoding hex -d data
get state k => 2 --dir or VARVE_DIR
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
check nosuch => 2 nosuch
check data => 2 name log directories with --dir
check -d data --allow-data-loss => 2 --repair
check -d data --repair --no-lock => 2 --no-lock
check -d file
clean nosuch -d data => 1 there is no topic 'nosuch'
clean orders:9 -d data => 1 no partition 9
clean orders:x -d data => 2 is not a partition
explain orders -d data --offset 5
explain orders:0 -d data --offset 99
explain orders -d data --key nosuch
explain nosuch -d data => 1 there is no topic 'nosuch'
explain orders -d data --key a --offset 5 => 2 --offset
forecast nosuch -d data => 1 there is no topic 'nosuch'
forecast -d data -s retention.ms=soon
forecast -d data -s nosuch=1 => 1 nosuch
audit nosuch -d data => 1 there is no topic 'nosuch'
audit -d data --head zz => 2 64 hex digits
metrics -d nosuch => 1 there is no log directory
tier status -d data --store bogus://x
tier copy -d data --store bogus://x => 1 bogus
tier copy -d data --store s3:bucket
tier copy orders -d data
tier copy -d data --max-bytes-per-second fast
tier copy -d data --max-bytes-per-second 0 => 2 --max-bytes-per-second
tier restore new -d new --store file:empty => 1 exists, but is empty
tier restore new -d data --store file:nosuch => 1 nosuch is missing
tier restore new -d data
tier restore orders -d data --store file:empty --at soon
tier restore orders -d data --store file:empty --at 0
tier fsck -d data
tier fsck => 2 name a log directory with --dir or VARVE_DIR
tier fsck --store file:nosuch => 1 nosuch is missing
tier fsck --store file:empty
tier fsck --store bogus://x
tier fsck --store file:empty --keep-versions 7d
tier fsck --store file:empty --sweep
tier mirror -d data
tier mirror -d data --delete-extra => 2 --repair
dedup run orders --to x -d data
dedup run orders --to x --by id --window 10m -d data
dedup run orders --to x --by key -d data
dedup run orders --to x --by key --window 10 -d data
dedup run orders --to x --by key --window ten -d data => 2 not a duration
dedup run orders --to orders --by key --window 10m -d data => 1 cannot be read and written
dedup run nosuch --to x --by key --window 10m -d data => 1 nosuch
dedup run orders --to x --by key --window 10m --late maybe -d data
dedup run orders --to x --by key --window 10m --chunk-bytes big -d data
dedup status nosuch -d data => 1 has no deduplication 'nosuch'
dedup explain nosuch --offset 5 -d data
dedup explain nosuch -d data
shape list -u http://127.0.0.1:1 => 1 no shape server answers
shape list -u localhost => 1 is not a URL
shape list -u ftp://x
shape tail orders --where 'a >' -u http://127.0.0.1:1
shape delete x -u http://127.0.0.1:1
serve -d data -s nosuch=1 => 1 nosuch
job query
job query orders => 2 --store
job query nosuch -d data => 1 nosuch
job query orders -d nosuch => 1 does not exist
job query orders -d data --format parquet => 2 --format parquet needs --output
job query orders -d data --from soon => 2 is not a position
job query orders -d data --from '{"0":"x"}' => 2 is not a table of offsets by partition
job query orders -d data --option nosuch=1 => 1 nosuch
job query orders -d data --sql x --where y => 2 --sql is a whole statement
job query orders --store bogus://x
job query orders --store file:nosuch
job compact -d data
job compact orders -d data
job compact nosuch -d data => 1 has no object store yet
job compact --store file:nosuch
job verify -d data
job verify --store file:nosuch
job verify --store file:empty
job snapshot orders -d data
job snapshot orders -d data --to file
job snapshot nosuch -d data --to snaps
job snapshot orders -d data --to bogus://x
job snapshot orders -d data --to snaps --keep 0
job table orders -d data => 2 --to
job table orders --to noname -d data => 1 write NAMESPACE.NAME
job table orders --to a.b -d data --schema nosuch => 1 cannot be read
job table orders --to a.b -d data --format avro
job table orders --to a.b -d data --mode sometimes
job table orders --to a.b -d data --catalog http://127.0.0.1:1 => 1 cannot be reached
job dedup orders -d data --to x --by key --checkpoint ck
job dedup orders -d data --to x --by key --window 10m
job dedup orders -d data --to table:x --by key --window 10m --checkpoint ck => 1 'x'
job erase orders -d data => 2 give the keys to erase
job erase orders -d data --key a => 1 add --yes
job erase orders -d data --key hex:zz --yes => 1 begins with base64: or hex:
job erase orders -d data --keys-file nosuch --yes => 1 nosuch: No such file
job erase orders -d data --keys-file keys.bin --yes
job erase orders -d data --field a --yes
job erase orders -d data --key a --deadline 30 --yes => 1 write 30d for days
job erase orders -d data --key a --requested 2999-01-01 --yes => 1 is in the future
job erase orders -d data --key a --finish --yes => 2 --finish needs --id
job erase orders -d data --key a --sign-key file --yes
job erase orders -d data --key a --receipt nosuch/x --yes => 1 nothing was erased
job erase nosuch -d data --key a --yes => 1 there is no topic 'nosuch'
job due -d nosuch
job report nosuch
job report file
job report bad.json
job report empty
job demo -d data
snapshot list nosuch
snapshot list file => 1
snapshot verify empty => 1 exists, but is empty
snapshot prune empty => 2 --keep
snapshot prune empty --keep 0
table expire orders --older-than 7d
table expire a.b --older-than 7d --warehouse nosuch => 1 add --yes
table expire a.b --older-than 7d --warehouse nosuch --yes => 1 catalog.db is missing
table expire a.b --older-than 7 --warehouse nosuch
output list nosuch -d data
output forget orders nosuch -d data --yes => 1 nosuch
receipt verify nosuch --public-key nosuch
receipt verify bad.json --public-key file
demo -d data
demo --records 5
help
version
consume => 2 TOPIC
consume orders -d data -x
consume orders extra -d data
consume orders -d data --form 5
topic list --json=yes -d data
consum orders => 2 Did you mean `varve consume`?
log read orders => 2 varve consume with --dir
append orders => 2 Did you mean `varve produce --dir`?
lag => 2 Did you mean `varve group describe`?
xyzzy => 2 `varve --help` lists the commands.
--nonsense => 2 --nonsense
topic descr => 2 Did you mean `varve topic describe`?
topic configure => 2 Did you mean `varve topic alter`?
topic add-partitions orders 3 => 2 alter TOPIC --partitions N`?
group reset audit => 2 Did you mean `varve group reset-offsets`?
topic xyzzy => 2 `varve topic --help` lists the commands.
topic create x -d data -s segment.byte=5 => 1 did you mean 'segment.bytes'
topic alter orders -d data -s flush=ack -s segment.bytes => 2 NAME=VALUE
topic alter orders -d data -s flush=ack -s segment.byte=5 => 1 did you mean 'segment.bytes'
topic alter orders -d data -s flush=ack -s segment.bytes=5 => 1 14 to
topic alter orders -d data -s flush=ack --unset segment.byte => 1 did you mean 'segment.bytes'
topic alter state -d data -s cleanup.policy=eat => 1 is 'eat'
topic delete orders nosuch -d data --yes => 1 nosuch
topic delete-records orders -d data -p 0 => 2 --before
produce orders -d data --no-idempotence < x => 2 are for a broker
produce orders -d data --transactional-id t < x => 2 are for a broker
produce orders -d data --input xml < x => 2 is not lines, json, files or a template
produce orders -d data --input json -K = < x => 2 exclude each other
consume orders -d data --to soon => 2 is not a position: write beginning
consume orders -d data --from -3 => 2 is not a position: write beginning
consume orders -d data -n -1 => 2 --limit
consume orders -d data --last 0 => 2 --last
consume orders -d data -K '' => 2 empty
consume orders -d data --json -K = => 2 exclude each other
explain orders:9 -d data => 1 no partition 9
forecast orders:9 -d data => 1 no partition 9
forecast orders:x -d data => 2 is not a partition
explain orders:x -d data => 2 is not a partition
check => 2 --dir
check empty => 2 empty
audit orders:0 -d data --head zz => 2 64 hex digits
audit orders:0 -d data --head 888cfb612161 => 2 64 hex digits
tier copy -d data orders => 1 remote.storage.enable=true
tier restore nosuch -d new --store file:tiered.cold => 1 does not hold nosuch
tier restore orders:7 -d new --store file:tiered.cold => 1 does not hold orders:7
tier restore orders -d new --cluster test --store file:tiered.cold => 1 does not hold cluster
tier restore orders -d new --at 900 --store file:tiered.cold => 1 not retained
tier restore orders -d new --at soon --store file:tiered.cold => 2 is not a time
tier restore orders -d new -s retention.ms=often --store file:tiered.cold => 1 retention.ms
tier restore orders -d new -d new2 --store file:tiered.cold => 2 --dir
dedup run orders --to x --by key --before 1m -d data => 1 --window is missing
dedup run orders --to x --by key --window 10m -X a=b -d data => 2 name a broker
dedup run orders --to x --by key --window 10m -b localhost:1 -d data => 2 name a broker
shape list -u http://127.0.0.1:99999 => 1 is not a URL
shape list -u http://[::1 => 1 is not a URL
shape list -u http://a..b => 1 cannot be sent to http://
shape list -u http://127.0.0.1:1/ä => 1 cannot be sent to http://
serve -d new -s socket.request.max.byte=1 => 1 did you mean 'socket.request.max.bytes'
serve -d new -s listeners => 2 write NAME=VALUE
serve -d new --listen nowhere => 1 write NAME://host:port
serve -d new --config missing.properties => 1 missing.properties
serve -d '' => 2 is empty
user add a -d '' < secret => 2 is empty
job query orders -d tiered --output x => 2 --output needs --format json, csv or parquet
job query orders -d tiered --json --format csv => 2 are two formats
job query orders -d tiered --from x => 2 is not a position
job query orders -d tiered --option no.such=1 => 1 no.such
job query nosuch -d tiered => 1 nosuch
job query nosuch --store file:tiered.cold --estimate => 1 orders
job query orders --estimate -d nosuch => 1 does not exist
job compact nosuch -d tiered => 1 no topic 'nosuch'
job compact -d tiered -s no.such=1 => 1 no.such
job compact -d nosuch => 1 does not exist
job compact -d empty --store file:/nowhere => 1 has no compacted topic
job compact orders -d data --store file:/nowhere => 1 cleanup.policy is delete
job verify nosuch -d tiered => 1 no topic 'nosuch'
job verify -d nosuch => 1 does not exist
job snapshot nosuch -d tiered --to s => 1 nosuch
job snapshot orders -d tiered --to tiered/s => 1 overlap
job snapshot orders -d tiered --to s --at x => 2 is not a position
job table --to a.b -d data => 2 TOPIC
job table nosuch -d tiered --to a.b => 1 nosuch
job table orders -d tiered --to a.b --format json --schema /no => 1 /no
job table orders -d data --to a.b --warehouse s3://bucket/x => 1 cannot contain a catalog file
job table orders -d data --to a.b --format raw --registry http://host => 1 raw values have no schema
job table orders -d data --to a.b --buckets 10001 => 1 from 1 to 10000
job dedup nosuch -d tiered --to once --by key --window 1m --checkpoint c => 1 nosuch
job dedup in --to out --by key --checkpoint c --store file:/s --before 1h --after 1m => 1 --dir
job dedup in --to out --by key --checkpoint c --store file:/s --before 1h => 1 --window is missing
job due -d tiered --run -s no.such=1 => 1 no.such
job due -d data -d tiered => 2 give one --dir
job erase --key k -d data --yes => 2 Missing argument
job erase orders -d data --value x --yes => 1 --value needs --field
job erase orders -d data --key '' --yes => 1 --key is empty
job erase orders -d data --field email --value '' --yes => 1 --value is empty
job erase orders -d data --key k --sign-key /nowhere --yes => 1 /nowhere: No such file
job erase orders -d data --key k --deadline soon --yes => 1 is not a time
job erase orders -d data --field a --value x --format xml --yes => 2 'json', 'debezium'
job erase orders -d data --key k --rescan no --yes => 2 'full', 'keys'
job erase orders -d data --key k --grace soon --yes => 2 is not a duration
topic describe x -d nosuch => 1 there is no log directory
topic alter x -d nosuch -s flush=ack => 1 there is no log directory
topic delete x -d nosuch --yes => 1 there is no log directory
consume x -d nosuch => 1 there is no log directory
produce x -d nosuch < x => 1 there is no log directory
clean -d nosuch => 1 varve topic create TOPIC --dir
clean -d file => 1 it is a file
clean -d data/orders-0 => 1 orders:0
forecast -d nosuch => 1 there is no log directory
explain t -d nosuch => 1 there is no log directory
get t k -d nosuch => 1 there is no log directory
consume orders -b localhost:1 --group g --last 3 => 2 reset-offsets
topic alter orders -b localhost:1 => 2 nothing to change
table expire a.b => 2 --older-than
table expire a.b --older-than 1d --yes => 1 --warehouse, --catalog
topic create x -d data -s retention.ms=1.5d => 2 '1.5d' is not a duration: write numbers with ms
topic create x -d data -s log.retention.hours=5 => 1 the broker's name, a topic's is 'retention.ms'
topic create x -d data -s log.retention.bytes=5 => 1 a topic's is 'retention.bytes'
topic list -d data -d data => 1 the log directories are data, data: name one or more, each once
topic list -b http://localhost:9092 => 2 write HOST:PORT
topic list -b localhost:99999 => 2 write HOST:PORT
topic describe orders -d data --at 2026-03-01T25:00 => 2 is not a time: write a time such as
tier status -d data --store /tmp => 1 has no scheme: write a directory as file:/path
consume orders -d data --template '%v\q' => 2 there are \n, \t, \xNN
consume orders -d data --template '%p %' => 2 ends with a single %; write %%
dedup run orders --to x --by key --window 10m --before 5m -d data => 2 --window replaces --before
dedup run orders --to x --by key --window 10m -b localhost:1 => 1 localhost:1 (Connection refused)
shape serve -d data --data s --key-column orders => 2 '--key-column': 'orders' lacks one side
table expire a.b --older-than 7d --catalog nosuch --yes => 1 has no catalog nosuch: write a URI
receipt verify bad.json --public-key nosuch.pem => 1 nosuch.pem: No such file or directory; correct
snapshot list data => 1 does not hold a snapshot: name the place
topic create x --config retention.ms=1 -d data => 2 use --set NAME=VALUE
topic alter orders --add-config retention.ms=1 -d data => 2 use --set NAME=VALUE
topic alter orders --delete-config retention.ms -d data => 2 use --unset NAME
topic create x --replication-factor 1 -b localhost:1 => 2 use --replicas N
topic describe --topic orders -d data => 2 use the argument TOPIC
topic list --bootstrap-server localhost:1 => 2 use --bootstrap HOST:PORT
topic --create --topic x => 2 Did you mean `varve topic create`?
group --reset-offsets => 2 Did you mean `varve group reset-offsets`?
group describe --group g => 2 use the argument GROUP
group reset-offsets g --to-earliest => 2 use --to beginning
group reset-offsets g --to-latest => 2 use --to end
group reset-offsets g --to-datetime 2026-01-01 => 2 use --to TIME
group reset-offsets g --to-offset 5 => 2 use --to OFFSET
acl --add => 2 Did you mean `varve acl add`?
consume --topic orders -d data => 2 use the argument TOPIC
consume orders --from-beginning -d data => 2 without it all records are read from the beginning
consume orders --max-messages 5 -d data => 2 use --limit N
produce orders --property a=b -b localhost:1 => 2 use -X NAME=VALUE
produce orders --request-required-acks 1 -b localhost:1 => 2 use --acks N
serve -d data --port 9393 => 2 use --listen HOST:PORT
serve -d data --override log.dirs=x => 2 use --set NAME=VALUE
dump data --offsets-decoder => 2 prints records of internal topics as bytes
serve -d new -s retention.m=5 => 1 did you mean 'log.retention.ms'
serve -d new -s log.segment.bytes=1 => 1 log.segment.bytes in --set is 1, but must be 14 to
serve -d new --config kilo.properties => 1 log.segment.bytes in kilo.properties, line 2 '64MiX' is
serve -d new --config small.properties => 1 log.segment.bytes in small.properties, line 1 is 1, but
serve -d new --listen localhost:80000 => 1 port 80000 is not 1 to 65535
topic create x -d data -s min.insync.replicas=2 => 1 a directory keeps one replica; leave it out
topic alter orders -d data -s min.insync.replicas=2 => 1 one replica; leave it out
consume orders -d data -p 0 --from 99 => 1 records end before
serve -d /proc/nosuch => 1 cannot open log directory /proc/nosuch: No such file or directory; name
demo -d /proc/nosuch => 1 the process that writes ended by itself: cannot open log directory
job package -o nosuch/x.tar.gz => 1 nosuch does not exist: create it with mkdir
"""
_LIBRARY_TEXTS: Final = re.compile(
    r"\[Errno|codec can't|Input should be|valid integer|Value error|HTTPConnectionPool|Traceback|"
    r"https?://crypto|\.py\b|\bat org\.|java\.|object has no attribute"
)
"""Texts of Python, Java and libraries, which say nothing to a user of the command line."""
_LEAVES_A_CATALOG: Final = (
    "job table orders --to a.b -d data --format avro",
    "job table nosuch -d tiered --to a.b",
)
"""What is wrong with these is found out when the table is looked for in its catalog."""


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
    (root / "kilo.properties").write_text("node.id=1\nlog.segment.bytes=64MiX\n")
    (root / "small.properties").write_text("log.segment.bytes=1\n")
    (root / "unknown.properties").write_text("log.dirz=/x\n")
    (root / "keys.bin").write_bytes(b"\xff\xfe\x00")
    tiered = {"remote.storage.enable": "true", "cleanup.policy": "compact"}
    with varve.open(root / "tiered", maintain=False) as store:
        store.create_topic("orders", settings=tiered).append(key="k", value="v")
    run_varve("tier", "copy", "-d", root / "tiered", "--roll")
    return root


def _contents(place: Path) -> dict[str, bytes]:
    """The directories and files but for checkpoints, with their records and tables of topics."""
    return {
        str(path.relative_to(place)): path.read_bytes()
        if path.suffix == ".log" or path.name == TOPICS_FILE
        else b""
        for path in place.rglob("*")
        if not path.name.endswith("-checkpoint")
    }


@pytest.mark.parametrize("line", MISTAKES.strip().splitlines())
def test_a_mistake_is_one_sentence_with_a_remedy_that_exists_and_changes_nothing(
    line: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in os.environ:
        if name.startswith("VARVE_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(place)
    monkeypatch.setattr("varve.spark.console._start", lambda *_: pytest.fail("Spark was started"))
    command, _, expected = line.partition(" => ")
    words, _, given = command.partition(" < ")
    code, _, text = expected.partition(" ")
    before = _contents(place)
    result = CliRunner().invoke(app, shlex.split(words), input=f"{given}\n")
    assert str(result.exit_code) in (code or ("1", "2")), result.output
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    lines = [text for text in result.stderr.splitlines() if text]
    usage = [text for text in lines if text.startswith(("Usage:", "Try "))]
    assert len(lines) == len(usage) + 1, result.stderr
    message = lines[-1]
    assert message.startswith(("error: ", "Error: "))
    assert len(message) <= 700
    assert text in message
    assert not _LIBRARY_TEXTS.search(message), message
    for mentioned in re.findall(r"`varve ([^`]+)`", message):
        assert find_fault(mentioned.split()) is None, message
    assert _contents(place) == before or line.startswith(_LEAVES_A_CATALOG)


def test_there_are_many() -> None:
    assert len(MISTAKES.strip().splitlines()) >= 200
