"""deploy/docs/analytics.md cannot rot: its statements, programs, flags, options and columns are tried."""

import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flockmq._speedups.codec.packets import Publish
from flockmq.broker.cli import main
from flockmq.cluster.analytics.commands.sql import cell
from flockmq.cluster.analytics.options import OPTIONS, SourceOptions, parse_size
from flockmq.cluster.analytics.sink.options import OPTIONS as SINK_OPTIONS
from flockmq.cluster.analytics.sink.options import SinkOptions
from flockmq.cluster.analytics.sink.rows import COLUMNS
from flockmq.cluster.analytics.tables import TABLES
from flockmq.cluster.analytics.views import views
from tests.analytics.result_files import Fleet, write
from tests.analytics.written_logs import WrittenLog, row
from tests.harness import nursery
from tests.harness.broker_process import BrokerProcess, environment
from tests.harness.redis_process import RedisProcess
from tests.harness.socket_client import SocketClient

PAGE = Path("deploy/docs/analytics.md").read_text(encoding="utf-8")
STATEMENTS = re.findall(r"```sql\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.S)
PROGRAMS = [
    one for one in re.findall(r"```python\n(.*?)```", PAGE, re.S) if ".remote(" not in one
]  # test_connect has it
COMMANDS = [
    line.partition("  #")[0].strip()
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.S)
    for line in block.replace("\\\n", " ").splitlines()
    if line.startswith("flockmq")
]


def titled(statement: str) -> str:
    """The heading above a statement."""
    return re.findall(r"^### (.*)$", PAGE.partition(statement)[0], re.M)[-1]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The results of a job, with its messages."""
    fleet = Fleet()
    fleet.archive()
    return write(tmp_path_factory.mktemp("fleet"), fleet.tables)


def test_every_statement_has_an_example_of_its_output() -> None:
    assert PAGE.count("```sql") == len(STATEMENTS) == 8


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker")).start()
    yield process
    process.close()


@pytest.fixture(scope="module")
def asked(spark: SparkSession, results: Path) -> SparkSession:
    """A session with a view for each table."""
    views(spark, str(results))
    return spark


@pytest.mark.parametrize(("statement", "output"), STATEMENTS, ids=[titled(one) for one, _ in STATEMENTS])
def test_a_statement_gives_what_the_page_shows(asked: SparkSession, statement: str, output: str) -> None:
    found = asked.sql(statement)
    lines = [found.columns, *([str(cell(value, "-")) for value in row] for row in found.collect())]
    shown = [re.split(r" {2,}", line.strip()) for line in output.splitlines()]
    assert lines == shown


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(
    spark: SparkSession,
    results: Path,
    redis_server: RedisProcess,
    broker: BrokerProcess,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    program: str,
) -> None:
    log = WrittenLog(redis_server, "n1", "a")
    log.write([row(4_000_000_000_000_000 + index, "site/1", b"x") for index in range(7)])
    if "archive" in program:
        path = tmp_path / "lake.toml"
        path.write_text(f'redis = "{redis_server.url}"\n[[tables]]\ntable = "{tmp_path}/messages"\n')
        assert main(["lake", str(path), "--once"]) == 0
        program = program.replace("/srv/lake", str(tmp_path))
    program = program.replace("/srv/fleet", str(results)).replace("redis://10.0.0.5:6379", redis_server.url)
    program = program.replace("mqtt://10.0.0.5:1883", f"mqtt://127.0.0.1:{broker.port}")
    exec(program, {"spark": spark})
    out = capsys.readouterr().out
    assert re.search(r"\| *site/1\| +7\|", out) or re.search(r"\| *berlin\| *3470382\|", out)
    if "counts/" in program:
        with SocketClient(broker.port, "device") as client:
            client.subscribe(("counts/#", 1))
            assert client.receive() == Publish("counts/site/1", b"7", qos=1, retain=True, packet_id=1)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_these_flags(command: str) -> None:
    words = command.split()
    name = words[1:3] if words[1] == "analytics" else words[1:2]
    help_ = nursery.run(
        [sys.executable, "-m", "flockmq.broker.cli", *name, "--help"], capture_output=True, text=True, env=environment()
    )
    assert help_.returncode == 0, help_.stderr
    flags = set(re.findall(r"(?<!\S)(--?[a-zA-Z][\w-]*)", re.sub(r"'[^']*'|\"[^\"]*\"", "", command)))
    assert flags <= set(re.findall(r"(--?[a-zA-Z][\w-]*)", help_.stdout))


def test_all_commands_are_there() -> None:
    assert len(COMMANDS) >= 12
    names = {"run", "sql", "report", "package"}
    assert names <= {command.split()[2] for command in COMMANDS if command.startswith("flockmq analytics")}


def table_rows(head: str) -> list[list[str]]:
    """The rows of the table with this first cell of its head."""
    lines = PAGE.partition(f"| {head} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_the_options_are_those_of_the_source() -> None:
    defaults = {field.name: field.default for field in fields(SourceOptions)}
    listed = {name: default for names, default, _ in table_rows("option") for name in re.findall(r"`(\w+)`", names)}
    assert set(listed) | {"redisUrl"} == {option.name for option in OPTIONS.values()}
    for option in OPTIONS.values():
        text = listed.get(option.name, "").strip("`")
        default = defaults[option.field]
        if isinstance(default, bool):
            assert text == str(default).lower(), option.name
        elif isinstance(default, int):
            assert parse_size(text) == default, option.name
        elif isinstance(default, float):
            assert float(text) == default, option.name
        elif isinstance(default, str):
            assert text == default, option.name


def test_the_options_and_columns_of_the_sink() -> None:
    defaults = {field.name: field.default for field in fields(SinkOptions)}
    listed: dict[str, str] = {}
    for names, default, _ in table_rows("sink option"):
        found, texts = re.findall(r"`(\w+)`", names), re.findall(r"`([\w.]+)`", default)
        listed |= dict(zip(found, texts or [""] * len(found), strict=True))
    assert [*listed] == [option.name for option in SINK_OPTIONS.values()]
    for option in SINK_OPTIONS.values():
        if option.field != "broker":
            value = defaults[option.field]
            assert option.parse(listed[option.name]) == value, option.name
    columns = [name for names, *_ in table_rows("sink column") for name in re.findall(r"`(\w+)`", names)]
    assert columns == [*COLUMNS]


def test_the_columns_are_those_of_the_tables() -> None:
    listed = {name.strip("`"): re.findall(r"`(\w+)`", columns) for name, _, columns in table_rows("table")}
    listed["silence"] = [column for column in listed["silence"] if column not in ("silent", "back", "forgotten")]
    assert listed == {name: [part.split()[0] for part in ddl.split(",")] for name, ddl in TABLES.items()}
