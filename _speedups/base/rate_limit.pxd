# A token bucket: it refills at a rate, holds the amount of one second, and may be overdrawn.

from libc.stdint cimport uint32_t

from .tick cimport TICKS_PER_SECOND

cdef struct RateLimit:
    double used                # of one second's amount; above `rate` the limit is exceeded
    uint32_t tick              # of the last use


cdef inline bint has_rate(RateLimit* limit, double rate, uint32_t tick) noexcept nogil:
    """Whether the limit allows further use; rate 0 = no limit."""
    if rate == 0:
        return True
    if tick != limit.tick:
        limit.used = max(0.0, limit.used - rate * (tick - limit.tick) / TICKS_PER_SECOND)
        limit.tick = tick
    return limit.used < max(rate, 1.0)


cdef inline bint charge_rate(RateLimit* limit, double rate, double amount, uint32_t tick) noexcept nogil:
    """Charge `amount`, even over the limit; returns whether more is allowed. Without a limit nothing is recorded."""
    if rate == 0:
        return True
    has_rate(limit, rate, tick)
    limit.used += amount
    return has_rate(limit, rate, tick)
