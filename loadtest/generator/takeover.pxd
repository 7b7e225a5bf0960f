# The load of take-overs: each client has two connections, and connects with one while it is connected with the other.

from libc.stdint cimport uint32_t, uint64_t

from .connection cimport OPENING, READY, Connection, Network, dial, fail
from .wire cimport monotonic_ns

cdef enum:
    TIME_LIMIT = 5              # s for one take-over, or for connect, CONNACK and disconnect

cdef struct TakeOvers:
    Connection* pairs           # two for each client; borrowed
    uint32_t clients
    uint32_t turn               # the client of the last take-over
    double rate                 # take-overs per second; 0 = as many as possible
    uint64_t begun              # take-overs since `started`
    uint64_t started            # ns


cdef inline bint is_taken_over(const Connection* connection) noexcept nogil:
    """Whether this connection ends because the client's other one has sent CONNECT."""
    cdef const Connection* other = connection + 1 if connection.target == 0 else connection - 1
    return connection.state == READY and other.fd >= 0 and other.taking_over and other.state > OPENING


cdef inline uint64_t begin_take_overs(Network* network, TakeOvers* load, uint64_t now) noexcept nogil:
    """Begin the due take-overs, clients in turn; skip clients whose last one is unfinished.

    Returns for how many ns the loop may sleep.
    """
    cdef uint64_t due = <uint64_t>(<double>(now - load.started) * load.rate / 1e9) + 1
    cdef uint64_t next_due
    cdef uint32_t skipped = 0
    cdef Connection* old
    cdef Connection* new
    while skipped < load.clients and (load.rate == 0 or load.begun < due):
        load.turn = (load.turn + 1) % load.clients
        old = load.pairs + 2 * load.turn
        new = old + 1
        if new.state == READY:
            old, new = new, old
        skipped += 1
        if old.state == READY and new.fd < 0:
            load.begun += 1
            skipped = 0
            new.taking_over = True
            dial(network, new)
    if skipped or load.rate == 0:
        return 1000000
    next_due = load.started + <uint64_t>(load.begun / load.rate * 1e9)
    now = monotonic_ns()
    return next_due - now if next_due > now else 0


cdef inline void check_take_overs(Network* network, TakeOvers* load) noexcept nogil:
    """Fail take-overs beyond the time limit, and connect clients without a connection again."""
    cdef uint32_t number
    cdef uint64_t limit = monotonic_ns() - <uint64_t>TIME_LIMIT * 1000000000
    cdef Connection* pair
    cdef Connection* newer
    for number in range(load.clients):
        pair = load.pairs + 2 * number
        newer = pair if pair.dialed > pair[1].dialed else pair + 1
        if newer.fd >= 0 and newer.dialed < limit:
            if newer.state < READY:
                fail(network, newer, "no CONNACK while connected elsewhere", 0)
            elif pair.fd >= 0 and pair[1].fd >= 0:
                fail(network, pair if newer != pair else pair + 1, "not closed after its take-over", 0)
        if pair.fd < 0 and pair[1].fd < 0:
            pair.taking_over = False
            dial(network, pair)
