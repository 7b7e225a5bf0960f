# How much of something was used lately: a bucket that fills at a rate, holds what a second brings, and may be overdrawn.

from libc.stdint cimport uint32_t

cdef enum:
    METER_TICKS = 4            # a second

cdef struct Meter:
    double used                # of what a second brings; above `rate` nothing more is to be used
    uint32_t tick              # of the last use


cdef inline bint meter_has(Meter* m, double rate, uint32_t tick) noexcept nogil:
    """Whether something may be used; 0 = there is no limit."""
    if rate == 0:
        return True
    if tick != m.tick:
        m.used = max(0.0, m.used - rate * (tick - m.tick) / METER_TICKS)
        m.tick = tick
    return m.used < max(rate, 1.0)


cdef inline bint meter_use(Meter* m, double rate, double amount, uint32_t tick) noexcept nogil:
    """Use so much, whether it may be used or not; returns whether more may be. Without a limit nothing is noted."""
    if rate == 0:
        return True
    meter_has(m, rate, tick)
    m.used += amount
    return meter_has(m, rate, tick)
