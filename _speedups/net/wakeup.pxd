# Coalescing of wake-ups: a short wait for more input, when turns follow each other so fast that each has little.
#
# A wake-up for every message costs several times as much as the message. Like a network card's interrupt moderation
# this adds some 50 microseconds, and only while that makes turns larger. Clients that wait for each other's replies
# are not delayed.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from .posix cimport nanosleep, now, timespec

cdef enum:
    WAIT_NS = 50000
    IDLE_NS = 25000            # only when turns follow each other faster
    ENOUGH_PACKETS = 1000      # packets in the last turn from which no wait is needed
    WORTH_FACTOR = 2           # a wait pays if it multiplies the packets of a turn by this
    PROBE_TURNS = 32           # turns after which the other mode is tried again

cdef struct Wakeup:
    int64_t turn_ended         # ns
    int64_t idle               # smoothed time between turns, ns
    uint64_t packets           # in the last turn
    uint32_t busy_turns        # turns that followed each other fast
    bint waited                # before this turn
    double packets_after_wait  # smoothed packets of a turn after a wait ...
    double packets_without     # ... and of one without


cdef inline bint coalesce_wakeups(Wakeup* w, bint is_asked_for) noexcept:
    """Before a turn: wait, if that pays and no turn was requested. Returns whether it has waited."""
    cdef timespec moment
    cdef int64_t idle = now() - w.turn_ended
    w.waited = False
    w.idle += (min(idle, <int64_t>IDLE_NS * 8) - w.idle) / 8
    if is_asked_for or w.packets >= ENOUGH_PACKETS or w.idle > IDLE_NS:
        return False
    w.busy_turns += 1
    if (w.packets_after_wait >= WORTH_FACTOR * w.packets_without) == (w.busy_turns % PROBE_TURNS == 0):
        return False
    moment.tv_sec = 0
    moment.tv_nsec = WAIT_NS
    with nogil:
        nanosleep(&moment, NULL)
    w.waited = True
    return True


cdef inline void note_turn(Wakeup* w, uint64_t packets) noexcept:
    """After a turn: note its number of packets."""
    w.packets = packets
    if w.waited:
        w.packets_after_wait += (<double>packets - w.packets_after_wait) / 4
    else:
        w.packets_without += (<double>packets - w.packets_without) / 4
    w.turn_ended = now()
