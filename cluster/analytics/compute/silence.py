"""Devices that fell silent, and devices that are back.

A device's interval is the gap between one second with messages of it and the next such second; a burst counts as one
message. Its usual interval is the third quartile of its last KNOWN intervals, of which at least LEAST must exist. A
device is silent if no message arrives for `factor` times the usual interval, and for at least `least`. The clock is the
position up to which the logs have been read. While no device publishes, the job's own clock replaces it, so the silence
of a whole fleet is reported too.

A device that has been silent for `forget` is forgotten, which is an event too: else it would be reported as silent for
ever, even after its return.

Events depend on the times of messages alone, not on the boundaries of batches.
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ..job_options import Options

KNOWN = 20  # intervals that are kept
LEAST = 5  # intervals; with fewer a device has no usual interval
MARKS = "array<struct<first: bigint, last: bigint>>"  # seconds with messages: the first and the last of them
DEVICES = f"client_id string, node string, marks {MARKS}, usual bigint, last bigint, silent boolean"
EVENTS = "array<struct<at: bigint, event: string, since: bigint, usual_interval: double, silent_for: double>>"


def seen(rows: DataFrame) -> DataFrame:
    """Each client of a batch: its node, and its seconds with messages, in order. Messages of the API have no client."""
    second = F.floor(F.col("at") / 1_000_000)
    # Only numbers are aggregated over all messages: for texts, as in max_by(node), Spark would sort.
    seconds = (
        rows.where("client_id != ''")
        .groupBy("client_id", second.alias("second"), "node")
        .agg(F.min("at").alias("first"), F.max("at").alias("last"))
    )
    return (
        seconds.groupBy("client_id", "second")
        .agg(F.min("first").alias("first"), F.max("last").alias("last"), F.max_by("node", "last").alias("node"))
        .groupBy("client_id")
        .agg(
            F.max_by("node", "last").alias("new_node"),
            F.sort_array(F.collect_list(F.struct("first", "last"))).alias("new"),
        )
    )


def renewed(devices: DataFrame, new: DataFrame, clock: int, options: Options) -> DataFrame:
    """The devices after a batch, with its `events`."""
    limit = f"{options.silent_factor}D", str(options.silent_least)
    joined = devices.where("size(marks) > 0").join(new, "client_id", "full_outer")
    return (
        joined.withColumn("known", F.expr("coalesce(size(marks), 0)"))
        .withColumn("marks", F.expr(_appended()))
        .withColumn("grown", F.expr("size(marks) > known"))
        .withColumn("silent", F.expr("coalesce(silent, false)"))
        .withColumn("gaps", F.expr(_gaps(*limit)))
        .withColumn("usual", F.expr(f"case when grown then {_usual('marks')} else usual end"))
        .withColumn("last", F.expr("marks[size(marks) - 1].last"))
        .withColumn("deadline", F.expr(f"last + {_patience('usual', *limit)}"))
        .withColumn("gone", F.expr(f"last < {clock - options.forget}"))
        .withColumn("forgotten", F.expr("gone and silent and not grown"))
        .withColumn("falls", F.expr(f"deadline < {clock} and not (silent and not grown) and not gone"))
        .withColumn("events", F.expr(_events(*limit, clock)))
        .where("not gone or forgotten")
        .select(
            "client_id",
            F.coalesce("new_node", "node").alias("node"),
            # A forgotten device appears once more, without a mark, so that its event is reported.
            F.expr(f"slice(marks, greatest(1, size(marks) - {KNOWN}), if(forgotten, 0, {KNOWN + 1}))").alias("marks"),
            F.expr("if(forgotten, null, usual)").alias("usual"),
            F.expr("if(forgotten, null, last)").alias("last"),
            F.expr("coalesce(falls, false) or (silent and not grown and not gone)").alias("silent"),
            "events",
        )
    )


def due(devices: DataFrame, clock: int, options: Options) -> DataFrame:
    """The devices that are silent at `clock` and not yet reported as silent."""
    patience = _patience("usual", f"{options.silent_factor}D", str(options.silent_least))
    return devices.where(F.expr(f"not silent and last + {patience} < {clock}"))


def events(devices: DataFrame) -> DataFrame:
    """The result."""
    return devices.where("size(events) > 0").select("client_id", "node", F.inline("events"))


def nothing(spark: SparkSession) -> DataFrame:
    """The clients of a batch without messages."""
    return seen(spark.createDataFrame([], "client_id string, at bigint, node string"))


# ---- expressions in SQL, where higher-order functions are easier to read ----


def _appended() -> str:
    """The marks followed by the new ones. A second in both is merged; late messages are ignored."""
    old, new = f"coalesce(marks, cast(array() as {MARKS}))", f"coalesce(new, cast(array() as {MARKS}))"
    same = "size(marks) > 0 and size(new) > 0 and new[0].first div 1000000 = marks[size(marks) - 1].first div 1000000"
    last = "greatest(marks[size(marks) - 1].last, new[0].last)"
    merged = f"array(named_struct('first', marks[size(marks) - 1].first, 'last', {last}))"
    later = f"filter({new}, x -> coalesce(x.first div 1000000 > marks[size(marks) - 1].first div 1000000, true))"
    kept = f"case when {same} then concat(slice(marks, 1, size(marks) - 1), {merged}) else {old} end"
    return f"concat({kept}, {later})"


def _usual(marks: str, until: str = "") -> str:
    """The usual interval at the end of `marks`, or before mark number `until`; NULL with fewer than LEAST intervals."""
    end = until or f"size({marks})"
    begin = f"greatest(1, {end} - {KNOWN})"
    steps = f"array_sort(transform(sequence({begin}, {end} - 1), j -> {marks}[j].first - {marks}[j - 1].last))"
    return f"case when {end} > {LEAST} then element_at({steps}, cast(ceil(0.75 * ({end} - {begin})) as int)) end"


def _patience(usual: str, factor: str, least: str) -> str:
    """The time after which a device counts as silent; NULL without a usual interval."""
    return f"case when {usual} is not null then greatest(cast({usual} * {factor} as bigint), {least}) end"


def _gaps(factor: str, least: str) -> str:
    """Silences that ended in this batch: number of the mark after it, usual interval before it."""
    told = "silent and {0} = known"
    long = f"i >= greatest(known, 1) and (marks[i].first - marks[i - 1].last > {least} or {told.format('i')})"
    numbers = f"filter(sequence(0, size(marks) - 1), i -> {long})"
    with_usual = f"transform({numbers}, i -> named_struct('i', i, 'usual', {_usual('marks', 'i')}))"
    broken = f"marks[g.i].first - marks[g.i - 1].last > {_patience('g.usual', factor, least)}"
    return f"filter({with_usual}, g -> {told.format('g.i')} or coalesce({broken}, false))"


def _events(factor: str, least: str, clock: int) -> str:
    """`silent` and `back` for each such silence, `silent` alone for a lasting one, `forgotten` at its end."""
    since, back = "marks[g.i - 1].last", "marks[g.i].first"
    deadline = f"{since} + {_patience('g.usual', factor, least)}"
    fell = _event(deadline, "silent", since, "g.usual", "cast(null as double)")
    returned = _event(back, "back", since, "g.usual", f"({back} - {since}) / 1e6D")
    ended = f"transform(gaps, g -> if(silent and g.i = known, array({returned}), array({fell}, {returned})))"
    falling = _event("deadline", "silent", "last", "usual", "cast(null as double)")
    forgotten = _event(str(clock), "forgotten", "last", "usual", f"({clock} - last) / 1e6D")
    one = f"case when falls then array({falling}) when forgotten then array({forgotten}) else array() end"
    return f"concat(flatten({ended}), cast({one} as {EVENTS}))"


def _event(at: str, event: str, since: str, usual: str, silent_for: str) -> str:
    return (
        f"named_struct('at', {at}, 'event', '{event}', 'since', {since}, 'usual_interval', {usual} / 1e6D, "
        f"'silent_for', {silent_for})"
    )
