"""The end of a command that runs until a signal."""

import signal
import threading
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def end_by_signal(ended: threading.Event) -> None:
    """Set an event at SIGTERM or Ctrl-C. A second signal ends the process at once: it can be killed at any time."""

    def end(_: int, frame: FrameType | None) -> None:
        ended.set()
        for number in SIGNALS:
            signal.signal(number, signal.SIG_DFL)

    for number in SIGNALS:
        signal.signal(number, end)
