"""The output of a replay: its progress, its result, gaps of the logs."""

import time

from ...broker.commands.client_flags import warn
from ...broker.commands.output import print_json
from ..analytics.times import iso
from .player import Progress
from .recording import Recording


def resume_hint(progress: Progress) -> str:
    """How to continue."""
    return f"--since {iso(progress.resume_at)} goes on" if progress.published else ""


def progress_line(progress: Progress, recording: Recording, rate: float) -> str:
    """The progress, in less than a terminal's width."""
    at = time.strftime("%H:%M:%S", time.localtime(progress.at / 1e6))
    until = time.strftime("%H:%M:%S", time.localtime(recording.selection.until / 1e6))
    behind = f", {progress.behind:.0f} s behind" if progress.behind >= 1 else ""
    return f"at {at} of {until}: {progress.published:,} messages, {rate:,.0f}/s{behind}"


def summarize(progress: Progress, recording: Recording, seconds: float, *, as_json: bool) -> None:
    """Print the result in one line, or as JSON on standard output."""
    losses = recording.losses
    if as_json:
        print_json(
            {
                "published": progress.published,
                "payload_bytes": progress.bytes,
                "acknowledged": progress.acknowledged,
                "unacknowledged": progress.expected - progress.acknowledged - progress.refused,
                "refused": progress.refused,
                "left_out": progress.too_long,
                "without_properties": progress.bare,
                "last_accepted_at": iso(progress.at) if progress.at else None,
                "missing_bytes": losses.bytes,
                "never_logged": losses.lacking,
                "notices": losses.notices,
                "interrupted": progress.interrupted,
                "seconds": round(seconds, 3),
            }
        )
        return
    parts = [f"{progress.published:,} messages published in {seconds:.1f} s"]
    if progress.expected:
        parts.append(f"{progress.acknowledged:,} of {progress.expected:,} acknowledged")
    if progress.refused:
        parts.append(f"{progress.refused:,} refused, at first: {progress.refusal}")
    if progress.too_long:
        parts.append(f"{progress.too_long:,} left out: topic name too long with the prefix")
    if progress.bare:
        parts.append(f"{progress.bare:,} without their properties: the broker speaks no MQTT 5.0")
    if progress.interrupted:
        hint = resume_hint(progress)
        parts.append(f"ended before all was published{f', {hint}' if hint else ''}")
    warn("; ".join(parts))
    tell_lacking(recording)


def tell_lacking(recording: Recording) -> None:
    """Report messages that were never logged."""
    if recording.losses.lacking:
        warn(f"{recording.losses.lacking:,} messages of QoS 0 were never logged: Redis or the disk was slow or away")
