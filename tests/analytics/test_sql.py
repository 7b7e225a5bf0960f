"""`flockmq analytics sql`: rows, formats, faults in one line."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from flockmq.broker.errors import FlockError, UsageError
from flockmq.cluster.analytics.commands import sql
from flockmq.cluster.analytics.job_options import Options
from flockmq.cluster.analytics.output.batches import Batches
from flockmq.cluster.analytics.schema import MESSAGES
from tests.analytics.log_writer import LogWriter
from tests.analytics.test_results import fleet, rows
from tests.harness.deadline import DEADLINE
from tests.harness.redis_process import RedisProcess


@pytest.fixture(scope="module")
def directory(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The results of a job that has read the fleet's messages."""
    output = str(tmp_path_factory.mktemp("out"))
    options = Options(output=output, archive=True, live=False, results=frozenset(["rates", "silence"]))
    Batches(spark, options)(spark.createDataFrame(rows(fleet()), MESSAGES), 0)
    return output


def ask(spark: SparkSession, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The answer, in the tests' session."""
    sql.answer(spark, sql.parse(list(arguments)))
    return capsys.readouterr().out


def test_as_a_table(spark: SparkSession, capsys: pytest.CaptureFixture[str], directory: str) -> None:
    answer = ask(
        spark, capsys, directory, "select node, count(*) n, 1.5D x, null y from messages group by node order by 1"
    )
    counts = [sum(message.node == node for message in fleet()) for node in "ab"]
    assert answer.splitlines() == [
        "node  n     x    y",
        f"a     {counts[0]:>4}  1.5  -",
        f"b     {counts[1]:>4}  1.5  -",
    ]


def test_text_and_value_of_messages(spark: SparkSession, capsys: pytest.CaptureFixture[str], directory: str) -> None:
    query = (
        "select distinct payload, text, value from messages where payload in (x'fffe', '21.5', 'on') order by payload"
    )
    found = json.loads(ask(spark, capsys, directory, query, "--json"))
    assert found == [
        {"payload": "21.5", "text": "21.5", "value": 21.5},
        {"payload": "on", "text": "on", "value": None},
        {"payload": "\\xff\\xfe", "text": None, "value": None},
    ]


def test_columns_of_properties(spark: SparkSession, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They are the newest file's; files of a job with other columns have neither them nor `properties`."""
    options = Options(output=str(tmp_path), archive=True, live=False, results=frozenset())
    batches = Batches(spark, options)
    batches(spark.createDataFrame(rows(fleet()[:5]), MESSAGES).drop("properties"), 0)
    new = [(*row[:-1], bytearray(b"\x03\0\x01x"), "x") for row in rows(fleet()[5:8])]
    batches(spark.createDataFrame(new, f"{MESSAGES}, content_type string"), 1)
    query = "select content_type, properties, count(*) n from messages group by all order by n"
    found = json.loads(ask(spark, capsys, str(tmp_path), query, "--json"))
    assert found == [
        {"content_type": "x", "properties": "\x03\x00\x01x", "n": 3},
        {"content_type": None, "properties": None, "n": 5},
    ]


def test_as_csv(spark: SparkSession, capsys: pytest.CaptureFixture[str], directory: str) -> None:
    answer = ask(spark, capsys, directory, "select topic, text from messages", "--csv", "--limit", "7")
    assert len(list(csv.DictReader(io.StringIO(answer)))) == 7


FORMULAS = ["=1+1", "+1", "-x", "@SUM(A1)", "\t=1", "\r=1"]


@pytest.mark.parametrize(
    ("output", "options", "escapes"),
    [
        ("pipe", [], False),
        ("report.csv", [], True),
        ("report.txt", [], False),
        ("pipe", ["--formulas", "escape"], True),
        ("report.csv", ["--formulas", "keep"], False),
    ],
)
def test_formulas_in_csv(
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    directory: str,
    output: str,
    options: list[str],
    escapes: bool,
) -> None:
    """Any client of the broker could have a spreadsheet execute its text. Numbers stay numbers."""
    values = ", ".join(f"'{text}'" for text in FORMULAS)
    query = f"select explode(array({values})) `=name`, -1 n, 'x=1' plain"
    reader, writer = os.pipe()
    with (
        open(reader, newline="") as read,
        open(writer if output == "pipe" else tmp_path / output, "w", newline="") as written,
    ):
        monkeypatch.setattr(sys, "stdout", written)
        sql.answer(spark, sql.parse([directory, query, "--csv", *options]))
        written.close()
        found = read.read() if output == "pipe" else (tmp_path / output).read_bytes().decode()
    names, *lines = csv.reader(io.StringIO(found, newline=""))
    mark = "'" if escapes else ""
    assert names == [f"{mark}=name", "n", "plain"]
    assert [line[0] for line in lines] == [mark + text for text in FORMULAS]
    assert {tuple(line[1:]) for line in lines} == {("-1", "x=1")}


def test_tables_without_rows_are_there(spark: SparkSession, capsys: pytest.CaptureFixture[str], directory: str) -> None:
    assert json.loads(ask(spark, capsys, directory, "select * from outliers", "--json")) == []
    assert json.loads(ask(spark, capsys, directory, "select * from numbers", "--json")) == []


@pytest.mark.parametrize(
    ("query", "fault"),
    [
        ("selec 1", r"Syntax error at or near 'selec'"),
        ("select * from rate", r"`rate` cannot be found.*there are clients, lag, messages, numbers, outliers, rates"),
        ("select nope from rates", r"`nope` cannot be resolved"),
        ("select 1/0", r"the query has failed: .*Division by zero"),
    ],
)
def test_faults(spark: SparkSession, directory: str, query: str, fault: str) -> None:
    with pytest.raises(FlockError, match=fault) as caught:
        sql.answer(spark, sql.parse([directory, query]))
    assert "\n" not in str(caught.value)


def test_directories_of_nobody(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(FlockError, match="there is no directory"):
        sql.answer(spark, sql.parse([str(tmp_path / "none"), "select 1"]))
    with pytest.raises(FlockError, match="has nothing that `flockmq analytics run` wrote"):
        sql.answer(spark, sql.parse([str(tmp_path), "select 1"]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["select 1"],
        ["dir", "select", "1"],
        ["dir", "q", "--since", "now"],
        ["dir", "q", "--properties", "content-type"],
        ["dir", "q", "--json", "--csv"],
        ["dir", "q", "--json", "--formulas", "keep"],
        ["dir", "q", "--limit", "0"],
        ["--redis", "redis://x", "dir", "q"],
    ],
)
def test_wrong_command_lines(arguments: list[str]) -> None:
    with pytest.raises(UsageError):
        sql.parse(arguments)


def test_the_logs_themselves(
    spark: SparkSession, capsys: pytest.CaptureFixture[str], redis_server: RedisProcess
) -> None:
    written = LogWriter(redis_server.client(decode_responses=False)).fill(3)
    answer = ask(spark, capsys, "--redis", redis_server.url, "select count(*) n, max(topic) t from messages", "--json")
    assert json.loads(answer) == [{"n": len(written), "t": max(row.topic for row in written)}]


def flockmq(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command, as a process."""
    return subprocess.run(
        [sys.executable, "-m", "flockmq.broker.cli", "analytics", "sql", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
        env={**os.environ, **environment},
    )


def test_nothing_but_the_answer(directory: str) -> None:
    done = flockmq(directory, "select count(*) n from messages", "--master", "local[1]")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"n\n{len(fleet())}\n", "")


def test_no_java(directory: str) -> None:
    done = flockmq(directory, "select 1", JAVA_HOME="/nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("flockmq: error: can't run Java (/nowhere/bin/java); Spark needs Java 17")
