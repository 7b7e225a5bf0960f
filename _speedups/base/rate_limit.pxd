# How much of something was used lately: a bucket that fills at a rate, holds what a second brings, and may be overdrawn.

from libc.stdint cimport uint32_t

cdef enum:
    TICKS_PER_SECOND = 4            # a second

cdef struct RateLimit:
    double used                # of what a second brings; above `rate` nothing more is to be used
    uint32_t tick              # of the last use


cdef inline bint has_rate(RateLimit* limit, double rate, uint32_t tick) noexcept nogil:
    """Whether something may be used; 0 = there is no limit."""
    if rate == 0:
        return True
    if tick != limit.tick:
        limit.used = max(0.0, limit.used - rate * (tick - limit.tick) / TICKS_PER_SECOND)
        limit.tick = tick
    return limit.used < max(rate, 1.0)


cdef inline bint charge_rate(RateLimit* limit, double rate, double amount, uint32_t tick) noexcept nogil:
    """Use so much, whether it may be used or not; returns whether more may be. Without a limit nothing is noted."""
    if rate == 0:
        return True
    has_rate(limit, rate, tick)
    limit.used += amount
    return has_rate(limit, rate, tick)
