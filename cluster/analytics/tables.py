"""The output of the job: a directory of Parquet files for each of these tables, partitioned by date and hour (UTC).

Every column of every result is defined here only. A window's row is written when the window is over. Later messages of
the window (a node's log was far behind) add another row for it, so that sums stay right.
"""

from .schema import MESSAGES

WINDOW = "window_start timestamp, window_end timestamp"
TABLES = {
    "messages": MESSAGES,
    # Per topic prefix and node; sizes are of payloads, qos_0 to qos_2 are shares of the messages.
    "rates": f"{WINDOW}, prefix string, node string, messages bigint, bytes bigint, publishers bigint, "
    "size_p50 double, size_p90 double, size_p99 double, size_max int, qos_0 double, qos_1 double, qos_2 double",
    # Per client: rate in messages a second, longest_gap in seconds between two messages of the window.
    "clients": f"{WINDOW}, client_id string, node string, first timestamp, last timestamp, messages bigint, "
    "bytes bigint, topics bigint, rate double, longest_gap double",
    "top_clients": f"{WINDOW}, rank int, client_id string, messages bigint, bytes bigint, share double",
    "top_topics": f"{WINDOW}, rank int, topic string, messages bigint, bytes bigint, share double",
    # Numeric payloads. field is empty for a payload that is a number, else the path in a JSON document.
    "numbers": f"{WINDOW}, topic string, field string, count bigint, mean double, min double, max double, "
    "stddev double",
    # Seconds from accepted to written, of the window's messages.
    "lag": f"{WINDOW}, node string, messages bigint, p50 double, p99 double, max double",
    # event is "silent", "back" or "forgotten"; since is the time of the message before the silence; unit: seconds.
    "silence": "at timestamp, client_id string, event string, since timestamp, usual_interval double, "
    "silent_for double, node string",
    # score is the robust z-score: the distance from the median in units of the spread (1.4826 MAD).
    "outliers": "accepted_at timestamp, topic string, field string, client_id string, node string, value double, "
    "median double, spread double, score double",
}
# The time column that determines a row's date and hour.
TIMES = {"messages": "accepted_at", "silence": "at", "outliers": "accepted_at"}
WINDOWED = tuple(name for name, columns in TABLES.items() if columns.startswith(WINDOW))
RESULTS = tuple(name for name in TABLES if name != "messages")


def time_of(name: str) -> str:
    """The column that determines a row's date and hour."""
    return TIMES.get(name, "window_start")
