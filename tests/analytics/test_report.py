"""`flockmq analytics report`: the page says what is in the files, in a real Chromium, whatever names clients chose."""

import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flockmq.broker.cli import main
from flockmq.cluster.analytics.times import format_time
from tests.analytics.result_files import MINUTE, SECOND, T0, Fleet, Tables, schema, write
from tests.harness.broker_process import until
from tests.harness.chromium import Chromium

EVIL = [
    "<script>document.title='taken'</script>",
    '"><img src=x onerror="document.title=\'taken\'">',
    "'};alert(1);//</style></script><svg onload=alert(1)>",
    "right\u202eto\u2066left\u0645\u0631\u062d\u0628\u0627",
    "nul\x00 bell\x07 esc\x1b[31m tab\t line\n",
    "&lt;b&gt;&amp;",
    "l" + "o" * 4000 + "ng",
    "emoji \U0001f600 and \u0301combining",
]
Report = Callable[..., tuple[int, str]]


@pytest.fixture
def report(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Report:
    """Run the command; (exit status, what it said)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        status = main(["analytics", "report", *arguments])
        told = capsys.readouterr()
        return status, told.out + told.err

    return run


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One browser for all tests of this file."""
    with Chromium(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture
def browse(report: Report, chromium: Chromium, tmp_path: Path) -> Callable[..., Chromium]:
    """Write tables, make the page, open it; fails if it says anything on the console or asks for anything."""

    def open_(tables: Tables, *flags: str, width: int = 1280, dark: bool = False) -> Chromium:
        write(tmp_path / "results", tables)
        status, told = report(str(tmp_path / "results"), *flags)
        assert status == 0, told
        chromium.look(width, dark=dark)
        chromium.console(), chromium.requests()
        chromium.open(tmp_path / "report.html")
        assert chromium.console() == []
        assert chromium.requests() == [(tmp_path / "report.html").as_uri()]
        return chromium

    return open_


TABLE = """
const figure = [...document.querySelectorAll("figure")].find(f => f.querySelector("h3").textContent === arguments[0]);
return [figure.querySelector("thead tr"), ...figure.querySelectorAll("tbody tr")].map(
    row => [...row.cells].map(cell => "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent));
"""
COUNT = """
const figure = [...document.querySelectorAll("figure")].find(f => f.querySelector("h3").textContent === arguments[0]);
return figure.querySelectorAll(arguments[1]).length;
"""
PLOT = """
const plot = drawn.find(one => one.root.closest("figure").querySelector("h3").textContent === arguments[0]);
"""
DATA = f"{PLOT} return plot.data;"
PAINTED = (
    PLOT
    + """
const { width, height } = plot.ctx.canvas, colours = {};
const pixels = new Uint32Array(plot.ctx.getImageData(0, 0, width, height).data.buffer);
for (const pixel of pixels) colours[pixel] = (colours[pixel] ?? 0) + 1;
return plot.series.slice(1).map((one, index) => {
    const colour = one.fill(plot, index) ?? one.stroke(plot, index);
    const [red, green, blue] = colour.match(/[0-9a-f]{2}/g).map(part => parseInt(part, 16));
    return colours[((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0] ?? 0;
});
"""
)  # how many pixels have the colour of each series
TILES = """
return Object.fromEntries([...document.querySelectorAll(".tile")].map(
    tile => [tile.querySelector("dt").textContent, tile.querySelector(".big").textContent]));
"""


def test_the_plots_have_what_the_files_have(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=90)
    page = browse(fleet.tables)
    rates = fleet.tables["rates"]
    by_prefix = Counter[str]()
    by_minute = defaultdict(Counter[str])
    for row in rates:
        by_prefix[row["prefix"]] += row["messages"]
        by_minute[(row["window_start"] - T0) // MINUTE][row["prefix"]] += row["messages"]
    order = [name for name, _ in by_prefix.most_common()]

    # Areas: the six largest prefixes and the others; every minute a point.
    title = "Messages per second by topic prefix"
    head, *rows = page.run(TABLE, title)
    assert head == ["time", *order[:6], "other"]
    assert len(rows) == 90
    painted = page.run(PAINTED, title)
    assert len(painted) == 7 and min(painted) > 500
    for minute, row in enumerate(rows):
        expected = [by_minute[minute][name] / 60 for name in order[:6]]
        expected.append(sum(by_minute[minute][name] for name in order[6:]) / 60)
        assert row[1:] == pytest.approx(expected)
    times, *areas = page.run(DATA, title)
    assert times == [T0 / 1e6 + 60 * minute for minute in range(90)]
    for index, area in enumerate(reversed(areas)):  # the first one is at the bottom
        assert area == pytest.approx([sum(row[1 : index + 2]) for row in rows])

    by_node = Counter[str]()
    for row in rates:
        by_node[row["node"]] += row["bytes"]
    head, *rows = page.run(TABLE, "Messages per second by node")
    painted = page.run(PAINTED, "Messages per second by node")
    assert (head[1:], len(painted), min(painted) > 50) == (sorted(by_node), 3, True)
    _, *rows = page.run(TABLE, "Payload bytes per second by topic prefix")
    assert sum(sum(row[1:]) for row in rows) * 60 == pytest.approx(sum(by_node.values()))

    # QoS: shares weighted by messages.
    _, *rows = page.run(TABLE, "QoS")
    total = sum(by_prefix.values())
    shares = [sum(row[f"qos_{qos}"] * row["messages"] for row in rates) / total for qos in range(3)]
    assert rows[0][0] == "all"
    assert rows[0][1:] == pytest.approx([total, *shares])
    assert page.run(COUNT, "QoS", "rect.part") == 3 * (1 + len(by_prefix))

    # Sizes.
    _, *rows = page.run(TABLE, "Payload sizes")
    largest = {name: max(row["size_max"] for row in rates if row["prefix"] == name) for name in order}
    assert {row[0]: row[4] for row in rows if row[0] != "all"} == largest
    assert page.run(COUNT, "Payload sizes", "circle") == 4 * len(order)


def test_clients_devices_values_and_lag_are_those_of_the_files(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=60)
    page = browse(fleet.tables)
    tables = fleet.tables

    clients, topics = Counter[str](), Counter[str]()
    for row in tables["clients"]:
        clients[row["client_id"]] += row["messages"]
    for row in tables["top_topics"]:
        topics[row["topic"]] += row["messages"]
    _, *rows = page.run(TABLE, "Clients that publish most")
    assert {row[0]: row[1] for row in rows} == clients
    assert [row[1] for row in rows] == sorted(clients.values(), reverse=True)
    _, *rows = page.run(TABLE, "Topics with most messages")
    assert {row[0]: row[1] for row in rows} == dict(topics.most_common(100))
    for title in ("Clients that publish most", "Topics with most messages"):
        assert page.run(COUNT, title, "svg.track rect") == 12

    events = {(row["client_id"], row["since"]): row for row in sorted(tables["silence"], key=lambda row: row["at"])}
    still = {client for (client, _), row in events.items() if row["event"] == "silent"}
    _, *rows = page.run(TABLE, "Silent devices")
    assert {row[0] for row in rows if row[1] == "silent"} == still
    assert {(row[0], row[2]) for row in rows} == set(events)
    assert page.run(COUNT, "Silent devices", "rect:is(.stretch, .open)") == len(events)
    assert page.run(COUNT, "Silent devices", "rect.open") == len(still)

    _, *rows = page.run(TABLE, "Numbers by topic")
    for topic, count, mean, least, most, deviation in rows:
        name, _, field = topic.partition(" ")
        own = [row for row in tables["numbers"] if (row["topic"], row["field"]) == (name, field)]
        assert count == sum(row["count"] for row in own)
        assert mean == pytest.approx(sum(row["mean"] * row["count"] for row in own) / count)
        assert least == pytest.approx(min(row["min"] for row in own))
        assert most == pytest.approx(max(row["max"] for row in own))
        assert deviation > 0.5  # of the minutes, and between them
    assert len(rows) == 16
    assert page.run(COUNT, "Numbers by topic", ".sensor canvas") == 12

    _, *rows = page.run(TABLE, "Values out of the ordinary")
    assert sorted(row[5] for row in rows) == pytest.approx(sorted(row["score"] for row in tables["outliers"]))
    points = sorted(zip(*page.run(DATA, "Values out of the ordinary"), strict=True))
    expected = sorted((row["accepted_at"] / 1e6, abs(row["score"])) for row in tables["outliers"])
    assert [list(point) for point in points] == [pytest.approx(list(point)) for point in expected]

    _, *rows = page.run(TABLE, "Time from acceptance to results")
    for minute, row in enumerate(rows):
        own = [one for one in tables["lag"] if one["window_start"] == T0 + minute * MINUTE]
        expected = [sum(one["p50"] for one in own) / 3, max(one["p99"] for one in own), max(one["max"] for one in own)]
        assert row[1:] == pytest.approx(expected)

    tiles = page.run(TILES)
    total = sum(row["messages"] for row in tables["rates"])
    assert tiles["Messages"] == f"{total / 1e6:.2f} M"
    assert (tiles["Clients"], tiles["Silent now"], tiles["Outliers"]) == ("48", str(len(still)), "40")


def test_tooltips_and_keys_tell_a_moments_values(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=31, prefixes=["one", "two"])
    page = browse(fleet.tables)
    box = page.run(
        "const b = document.querySelector('.plot .u-over').getBoundingClientRect(); return [b.x, b.y, b.width]"
    )
    page.move_to(box[0] + box[2] / 2, box[1] + 60)
    shown = """
    const tip = document.querySelector(".tip");
    return tip.hidden ? null : [...tip.querySelectorAll("p, span, b")].map(part => part.textContent);
    """
    _, *rows = page.run(TABLE, "Messages per second by topic prefix")
    told = page.run(shown)
    assert told[0] == rows[15][0] == "2026-01-31 00:15:00"
    assert told[1::2] == ["two", "one"]
    assert re.fullmatch(r"\d+/s", told[2])
    line = page.run("return document.querySelector('.plot .u-cursor-x').getBoundingClientRect().x")
    assert line == pytest.approx(box[0] + box[2] / 2, abs=2)
    page.run("document.querySelector('.plot').focus()")
    page.press("ArrowLeft")
    assert page.run(shown)[0] == "2026-01-31 00:14:00"
    page.press("Escape")
    assert page.run(shown) is None
    # A mark shows its title, and the browser's own tooltip is not there besides.
    page.run("document.querySelector('rect.part').scrollIntoView({block: 'center', behavior: 'instant'})")
    box = page.run("const b = document.querySelector('rect.part').getBoundingClientRect(); return [b.x, b.y, b.width]")

    def pointed() -> Any:
        page.move_to(box[0] + 5, box[1] + 3)  # the event of the scrolling may come now, and hides it again
        page.move_to(box[0] + 6, box[1] + 4)
        return page.run(shown)

    until(pointed, "a tooltip")
    assert re.fullmatch(r"all, QoS 0: [\d.]+ %", page.run(shown)[0])
    assert page.run("return document.querySelector('rect.part > title').textContent") == ""


def test_tables_are_sorted_by_a_click(browse: Callable[..., Chromium]) -> None:
    page = browse(Fleet(minutes=10).tables)
    click = """
    const named = figure => figure.querySelector("h3").textContent === arguments[0];
    [...document.querySelectorAll("figure")].find(named).querySelectorAll("thead th")[arguments[1]].click();
    """
    title = "Clients that publish most"
    for column, reverse in ((1, True), (1, False), (0, False), (0, True), (2, True)):
        page.run(click, title, column)
        _, *rows = page.run(TABLE, title)
        values = [row[column] for row in rows]
        assert values == sorted(values, reverse=reverse)
    assert page.run(COUNT, title, "th[aria-sort]") == 1


def test_plots_follow_the_colours_of_the_system_and_of_paper(browse: Callable[..., Chromium]) -> None:
    title = "Messages per second by topic prefix"
    page = browse(Fleet(minutes=10).tables)
    card = "return getComputedStyle(document.querySelector('.card')).backgroundColor"
    light = page.run(card)
    assert min(page.run(PAINTED, title)) > 500
    page.look(1280, dark=True)
    until(lambda: page.run(card) != light and min(page.run(PAINTED, title)) > 500, "dark colours")
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert page.run(card) == light and min(page.run(PAINTED, title)) > 500
    page.run("dispatchEvent(new Event('afterprint'))")
    assert page.run(card) != light and min(page.run(PAINTED, title)) > 500


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The time zone of the machine that makes the page."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
@pytest.mark.parametrize(
    ("day", "hours"),
    [
        ("2026-03-28", ["22:00", "23:00", "29 Mar", "01:00", "03:00", "04:00"]),  # the clock is set forward
        ("2026-10-24", ["23:00", "25 Oct", "01:00", "02:00", "03:00", "04:00"]),  # the clock is set back
    ],
)
def test_axes_have_times_of_the_machine_that_made_the_page(
    browse: Callable[..., Chromium], chromium: Chromium, day: str, hours: list[str]
) -> None:
    begin = round(datetime.fromisoformat(f"{day}T21:00:00Z").timestamp()) * SECOND
    rates = Fleet(minutes=420, prefixes=["one"]).tables["rates"]
    for row in rates:
        row |= {edge: row[edge] - T0 + begin for edge in ("window_start", "window_end")}
    chromium.command("Emulation.setTimezoneOverride", timezoneId="America/New_York")
    try:
        page = browse({"rates": rates})
        labels = page.run("return drawn.find(one => one.root.closest('figure')).axes[0]._values")
    finally:
        chromium.command("Emulation.setTimezoneOverride", timezoneId="")
    assert labels[: len(hours)] == hours


@pytest.mark.parametrize("width", [390, 768, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_everything_is_within_the_page(browse: Callable[..., Chromium], width: int, dark: bool) -> None:
    tables = Fleet(minutes=60, prefixes=[f"a rather long prefix of number {index}" for index in range(9)]).tables
    page = browse(tables, "--title", "W" * 200, width=width, dark=dark)
    page.run("document.querySelectorAll('details').forEach(details => details.open = true)")
    outside = page.run(
        """
        return [...document.querySelectorAll("body *")].filter(element => {
            if (element.closest(".scroll > *, .plot > *, .small-plot > *, .tip, script")) return false;
            const box = element.getBoundingClientRect();
            return box.width && (box.left < -0.5 || box.right > innerWidth + 0.5);
        }).map(element => element.outerHTML.slice(0, 200))
        """
    )
    assert outside == []
    assert page.run("return document.documentElement.scrollWidth") <= width
    assert page.run("return drawn.every(plot => plot.root.offsetWidth <= plot.root.parentElement.offsetWidth)")
    # Text stays as large as it is, and can be told from what is behind it.
    assert (
        page.run("return drawn[0].axes.map(axis => [axis.font[0].split(' ')[0], axis.stroke()])")
        == [["12px", page.run("return css('--muted')")]] * 2
    )
    contrast = page.run(
        """
        const light = colour => {
            const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(
                value => value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
            return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
        };
        const behind = light(getComputedStyle(document.querySelector(".card")).backgroundColor);
        const texts = "h3, .about, .legend li, summary, td, .rows span, .times span";
        return [...document.querySelectorAll(texts)].map(element => {
            const ink = light(getComputedStyle(element).color);
            return (Math.max(ink, behind) + 0.05) / (Math.min(ink, behind) + 0.05);
        }).reduce((a, b) => Math.min(a, b));
        """
    )
    assert contrast >= 4.5
    assert page.run("return getComputedStyle(document.body).colorScheme") == "light dark"
    background = page.run("return getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(13, 17, 23)" if dark else "rgb(244, 246, 248)")


def test_each_plot_has_words_and_a_table(browse: Callable[..., Chromium]) -> None:
    page = browse(Fleet(minutes=10).tables)
    plots = page.run(
        """
        return [...document.querySelectorAll("figure")].map(figure => [figure.querySelector("h3").textContent,
            figure.querySelector(".plot[role=img]")?.getAttribute("aria-label") ?? null,
            figure.querySelectorAll("tbody tr").length])
        """
    )
    assert (len(plots), len([label for _, label, _ in plots if label])) == (12, 6)
    for title, label, rows in plots:
        assert rows
        pattern = rf"{title}: (\d+ series|points) from 2026-\S+ \S+ to .*\. The table has "
        assert label is None or re.match(pattern, label)
    identifiers = page.run("return [...document.querySelectorAll('[id]')].map(element => element.id)")
    assert len(identifiers) == len(set(identifiers))


def test_names_of_clients_stay_names(browse: Callable[..., Chromium], tmp_path: Path) -> None:
    fleet = Fleet(minutes=5, prefixes=EVIL, devices=2, nodes=EVIL[:3])
    for number, row in enumerate(fleet.tables["outliers"]):
        row |= {"topic": EVIL[number % len(EVIL)], "field": EVIL[0], "client_id": EVIL[1]}
    page = browse(fleet.tables, "--title", EVIL[0])
    text = (tmp_path / "report.html").read_text()
    assert page.run("return document.title") == EVIL[0]
    assert page.run("return document.querySelectorAll('img, script, [onload], [onerror]').length") == 4  # our scripts
    assert page.run("return document.querySelector('h1').textContent") == EVIL[0]
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069]", text)
    assert "oooooooooo" * 40 not in text
    names = {row[0] for row in page.run(TABLE, "QoS")[1:]}
    assert EVIL[:3] == [name for name in EVIL[:3] if name in names]
    assert "right\\u202eto\\u2066left\u0645\u0631\u062d\u0628\u0627" in names
    assert "nul\\x00 bell\\x07 esc\\x1b[31m tab\\t line\\n" in names
    assert "&lt;b&gt;&amp;" in names
    # Even a script that had got in would not run.
    page.run("const s = document.createElement('script'); s.textContent = 'window.ran = 1'; document.body.append(s)")
    assert page.run("return window.ran") is None
    page.console()


def test_it_is_complete_without_scripts(browse: Callable[..., Chromium], chromium: Chromium, tmp_path: Path) -> None:
    chromium.command("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browse(Fleet(minutes=10).tables)
        text = (tmp_path / "report.html").read_text().split("<script>")[0]
    finally:
        chromium.command("Emulation.setScriptExecutionDisabled", value=False)
    assert text.count("<svg") > 20
    assert text.count("<title>all, QoS 0: ") == 1  # what the browser shows by itself
    assert "Plots over time need JavaScript; their tables do not." in text
    assert text.count("<details>") == 12


# ---- how much ----


def test_a_year_of_minutes_makes_a_small_page(report: Report, tmp_path: Path) -> None:
    count = 365 * 24 * 60
    starts = pa.array(range(T0, T0 + count * MINUTE, MINUTE), pa.int64())
    names = [f"prefix-{number}" for number in range(1000)]
    columns: dict[str, Any] = {
        "window_start": starts.cast(pa.timestamp("us", "UTC")),
        "window_end": pa.array(
            [at + MINUTE for at in range(T0, T0 + count * MINUTE, MINUTE)], pa.timestamp("us", "UTC")
        ),
        "prefix": pa.array([names[number % 1000] for number in range(count)]),
        "node": pa.array(["a"] * count),
    }
    for field in schema("rates"):
        if field.name not in columns:
            columns[field.name] = pa.array([1] * count, field.type)
    place = tmp_path / "results" / "rates" / "date=2026-01-31" / "hour=00"
    place.mkdir(parents=True)
    pq.write_table(pa.table(columns), place / "0.parquet")
    status, told = report(str(tmp_path / "results"))
    assert status == 0, told
    text = (tmp_path / "report.html").read_text()
    assert len(text) < 600_000
    rows = re.findall(r"<tr>", text)
    assert 200 < len(rows) < 1500
    totals = re.search(r'<bdi>all</bdi></th><td class="n" data-v="(\d+)"', text.partition("<h3>QoS</h3>")[2])
    assert totals and int(totals[1]) == count


def test_many_devices_and_topics_are_cut_to_the_most(report: Report, tmp_path: Path) -> None:
    fleet = Fleet(minutes=3, prefixes=[f"site-{number}" for number in range(300)], devices=20)
    write(tmp_path / "results", fleet.tables)
    assert report(str(tmp_path / "results"))[0] == 0
    text = (tmp_path / "report.html").read_text()
    assert len(text) < 400_000
    assert "6,000 clients published; the table has the first 100." in text


# ---- which rows ----


def test_a_range_is_exact(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=180)
    since, until = T0 + 50 * MINUTE, T0 + 130 * MINUTE
    page = browse(fleet.tables, "--since", format_time(since), "--until", format_time(until))
    _, *rows = page.run(TABLE, "Messages per second by topic prefix")
    assert (rows[0][0], len(rows)) == ("2026-01-31 00:50:00", 80)
    total = sum(row["messages"] for row in fleet.tables["rates"] if since <= row["window_start"] < until)
    assert page.run(TABLE, "QoS")[1][1] == total
    # Devices that fell silent before, and still are, are there.
    _, *rows = page.run(TABLE, "Silent devices")
    assert any(row[2] < since for row in rows)


def test_events_after_the_last_window_are_no_drop_in_traffic(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=20)
    late = fleet.end + 90 * SECOND
    event = {"client_id": "late", "since": late - SECOND, "usual_interval": 1.0, "node": "a", "silent_for": None}
    fleet.tables["silence"].append(event | {"at": late, "event": "silent"})
    page = browse(fleet.tables)
    _, *rows = page.run(TABLE, "Messages per second by topic prefix")
    assert len(rows) == 20
    assert min(rows[-1][1:]) > 0
    assert "late" in {row[0] for row in page.run(TABLE, "Silent devices")}


def test_files_as_spark_writes_them_by_itself_are_read_too(browse: Callable[..., Chromium], tmp_path: Path) -> None:
    fleet = Fleet(minutes=5)
    page = browse(fleet.tables)
    before = page.run(TABLE, "QoS")
    for file in (tmp_path / "results").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(file).read(), file, use_deprecated_int96_timestamps=True)
    assert browse({}).run(TABLE, "QoS") == before


# ---- what is not there ----


@pytest.mark.parametrize("kept", ["rates", "clients", "silence", "numbers", "outliers", "lag", "top_topics"])
def test_one_table_alone_makes_a_page(browse: Callable[..., Chromium], kept: str) -> None:
    page = browse({kept: Fleet(minutes=5).tables[kept]})
    assert page.run("return document.querySelectorAll('canvas, svg.track').length") >= 1
    said = page.run("return [...document.querySelectorAll('p.none')].map(p => p.textContent)")
    assert len(said) >= 3
    assert all("`flockmq analytics run --results`" in words for words in said)


def test_one_minute_and_one_message_make_a_page(browse: Callable[..., Chromium]) -> None:
    fleet = Fleet(minutes=1, prefixes=["one"], devices=1, nodes=["a"])
    page = browse({name: rows[:1] for name, rows in fleet.tables.items()})
    (painted,) = page.run(PAINTED, "Messages per second by topic prefix")
    width, height = page.run(
        f"{PLOT} return [plot.bbox.width, plot.bbox.height]", "Messages per second by topic prefix"
    )
    assert painted > 0.8 * width * height


def test_a_value_between_gaps_is_a_dot(browse: Callable[..., Chromium]) -> None:
    rates = Fleet(minutes=30, prefixes=["one"]).tables["rates"]
    page = browse({"rates": [row for row in rates if (row["window_start"] - T0) // MINUTE in (0, 1, 15, 28, 29)]})
    title = "Payload size over time"
    with_dots = page.run(PAINTED, title)
    page.run(
        f"{PLOT} plot.series.forEach(one => {{ if (one.points) one.points.filter = () => null; }}); redraw()", title
    )
    without = page.run(PAINTED, title)
    assert all(more > fewer > 0 for more, fewer in zip(with_dots, without, strict=True))


def test_nothing_in_the_range_is_said(browse: Callable[..., Chromium]) -> None:
    page = browse(Fleet(minutes=5).tables, "--since", format_time(T0 + 3600 * SECOND))
    assert "There are no results in this range of time." in page.run("return document.body.innerText")


def test_nothing_at_all_is_one_error(report: Report, tmp_path: Path) -> None:
    status, told = report(str(tmp_path / "nowhere"))
    assert (status, len(told.splitlines())) == (1, 1)
    assert "there is no directory" in told
    (tmp_path / "results" / "rates").mkdir(parents=True)
    status, told = report(str(tmp_path / "results"))
    assert (status, len(told.splitlines())) == (1, 1)
    assert "has no results yet" in told
    assert not (tmp_path / "report.html").exists()


def test_a_damaged_file_is_one_error(report: Report, tmp_path: Path) -> None:
    write(tmp_path / "results", {"rates": Fleet(minutes=2).tables["rates"]})
    file = next((tmp_path / "results").rglob("*.parquet"))
    file.write_bytes(file.read_bytes()[:-100])
    status, told = report(str(tmp_path / "results"))
    assert (status, len(told.splitlines())) == (1, 1)
    assert "can't read" in told
    place = tmp_path / "other" / "lag"
    place.mkdir(parents=True)
    pq.write_table(pa.table({"window_start": pa.array([T0], pa.timestamp("us"))}), place / "0.parquet")
    status, told = report(str(tmp_path / "other"))
    assert "has no column" in told


def test_where_it_is_written(report: Report, tmp_path: Path) -> None:
    write(tmp_path / "results", {"rates": Fleet(minutes=2).tables["rates"]})
    status, told = report(str(tmp_path / "results"), "--output", "-")
    assert (status, told.startswith("<!DOCTYPE html>"), told.endswith("</html>\n")) == (0, True, True)
    status, told = report(str(tmp_path / "results"), "--output", "no/such/file.html")
    assert (status, "can't write no/such/file.html" in told) == (1, True)
    status, told = report(str(tmp_path / "results"), "--output", "other.html")
    assert re.fullmatch(r"other.html: \d+ KiB\n", told)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "DIR"),
        (["x", "--since", "soon"], "--since 'soon': expected a time such as"),
        (["x", "--since", "1 min ago", "--until", "2 min ago"], "--since is not before --until"),
        (["x", "--titel", "y"], "did you mean --title?"),
    ],
)
def test_wrong_usage_is_one_line(report: Report, flags: list[str], words: str) -> None:
    status, told = report(*flags)
    assert (status, len(told.splitlines()), words in told) == (2, 1, True)


def test_numbers_of_any_size(report: Report, chromium: Chromium, tmp_path: Path) -> None:
    """Values of a broken sensor do not keep the page from being made and drawn."""
    window = {"window_start": T0, "window_end": T0 + MINUTE, "field": "", "count": 2, "stddev": 0.0}
    values = [
        window | {"topic": f"t/{number:g}", "mean": number, "min": number, "max": number}
        for number in (1.7e18, 1e200, -1.7e308)
    ]
    outlier = {"topic": "t", "field": "", "client_id": "c", "node": "n", "value": 1e308, "median": 0.0, "spread": 1e-9}
    for number, scores in enumerate(([1.7e308], [1.2e308, 4.0], [float("inf"), -1e300])):
        outliers = [outlier | {"accepted_at": T0 + at * SECOND, "score": score} for at, score in enumerate(scores)]
        directory = write(tmp_path / f"results-{number}", {"numbers": values, "outliers": outliers})
        assert report(str(directory))[0] == 0
        chromium.console()
        chromium.open(tmp_path / "report.html")
        assert chromium.run("return document.querySelectorAll('canvas').length") >= 3
        assert chromium.run("return document.documentElement.scrollWidth <= innerWidth")
        assert chromium.console() == []
