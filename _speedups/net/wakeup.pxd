# Coalescing of wake-ups: waiting a moment for more to come, when turns follow each other so fast that each carries little.
#
# Being woken for every message costs several times what the message costs. Like a network card's interrupt moderation
# this trades some 50 microseconds for that, and only while it makes turns larger: clients that wait for each other's
# answers are not held up.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from _speedups.net.posix cimport nanosleep, now, timespec

cdef enum:
    WAIT_NS = 50000
    IDLE_NS = 25000            # only when turns follow each other faster
    ENOUGH_PACKETS = 1000      # packets in the last turn from which on no waiting is needed
    WORTH_FACTOR = 2           # times as many packets as without: what makes waiting worth while
    PROBE_TURNS = 32           # turns after which the way that is not taken now is tried again

cdef struct Wakeup:
    int64_t turn_ended         # ns
    int64_t idle               # smoothed time between turns, ns
    uint64_t packets           # in the last turn
    uint32_t busy_turns        # turns that followed each other fast
    bint waited                # before this turn
    double packets_after_wait  # smoothed packets of a turn after a wait ...
    double packets_without     # ... and of one without


cdef inline void coalesce_wakeups(Wakeup* w, bint is_asked_for) noexcept:
    """Before a turn: wait, if that is worth while and no turn was asked for."""
    cdef timespec moment
    cdef int64_t idle = now() - w.turn_ended
    w.waited = False
    w.idle += (min(idle, <int64_t>IDLE_NS * 8) - w.idle) / 8
    if is_asked_for or w.packets >= ENOUGH_PACKETS or w.idle > IDLE_NS:
        return
    w.busy_turns += 1
    if (w.packets_after_wait >= WORTH_FACTOR * w.packets_without) == (w.busy_turns % PROBE_TURNS == 0):
        return
    moment.tv_sec = 0
    moment.tv_nsec = WAIT_NS
    with nogil:
        nanosleep(&moment, NULL)
    w.waited = True


cdef inline void note_turn(Wakeup* w, uint64_t packets) noexcept:
    """After a turn that brought so many packets."""
    w.packets = packets
    if w.waited:
        w.packets_after_wait += (<double>packets - w.packets_after_wait) / 4
    else:
        w.packets_without += (<double>packets - w.packets_without) / 4
    w.turn_ended = now()
