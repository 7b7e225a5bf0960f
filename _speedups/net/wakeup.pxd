# Coalescing of wake-ups: a wait for more input, when turns follow each other so fast that each has little.
#
# A wake-up for every message costs several times as much as the message. Like a network card's interrupt moderation
# this adds some 50 microseconds, and only while that makes turns larger. At hundreds of thousands of packets a second
# it adds 200: a turn writes once to each receiver, so larger turns need fewer writes. Clients that wait for each
# other's replies are not delayed.

from libc.stdint cimport int64_t, uint32_t, uint64_t

from .posix cimport nanosleep, now, timespec

cdef enum:
    SHORT_NS = 50000
    LONG_NS = 200000
    IDLE_NS = 25000            # only when turns follow each other faster
    LONG_PACKETS = 64          # packets in a turn after a short wait from which a long one may pay
    ENOUGH_PACKETS = 1000      # packets in the last turn from which no wait is needed
    WORTH_FACTOR = 2           # a longer wait pays if it multiplies the packets of a turn by this
    PROBE_TURNS = 32           # turns after which another wait is tried

cdef enum:                     # the waits, by length
    NO_WAIT, SHORT_WAIT, LONG_WAIT, WAIT_COUNT

cdef struct Wakeup:
    int64_t turn_ended         # ns
    int64_t idle               # smoothed time between turns, ns
    uint64_t packets           # in the last turn
    uint32_t busy_turns        # turns that followed each other fast
    int wait                   # the wait before this turn
    double packets_after[WAIT_COUNT]   # smoothed packets of a turn, by the wait before it


cdef inline int choose_wait(Wakeup* w) noexcept:
    """The longest wait that pays; now and then another one, since the load changes."""
    cdef int longest = LONG_WAIT if w.packets_after[SHORT_WAIT] >= LONG_PACKETS else SHORT_WAIT
    cdef int wait = NO_WAIT
    while wait < longest and w.packets_after[wait + 1] >= WORTH_FACTOR * w.packets_after[wait]:
        wait += 1
    w.busy_turns += 1
    if w.busy_turns % PROBE_TURNS == 0:            # the others in turn
        wait = (wait + 1 + w.busy_turns // PROBE_TURNS % longest) % (longest + 1)
    return wait


cdef inline bint coalesce_wakeups(Wakeup* w, bint is_asked_for) noexcept:
    """Before a turn: wait, if that pays and no turn was requested. Returns whether it has waited."""
    cdef timespec moment
    cdef int64_t idle = now() - w.turn_ended
    w.wait = NO_WAIT
    w.idle += (min(idle, <int64_t>IDLE_NS * 8) - w.idle) / 8
    if is_asked_for or w.packets >= ENOUGH_PACKETS or w.idle > IDLE_NS:
        return False
    w.wait = choose_wait(w)
    if w.wait == NO_WAIT:
        return False
    moment.tv_sec = 0
    moment.tv_nsec = LONG_NS if w.wait == LONG_WAIT else SHORT_NS
    with nogil:
        nanosleep(&moment, NULL)
    return True


cdef inline void note_turn(Wakeup* w, uint64_t packets) noexcept:
    """After a turn: note its number of packets."""
    w.packets = packets
    w.packets_after[w.wait] += (<double>packets - w.packets_after[w.wait]) / 4
    w.turn_ended = now()
