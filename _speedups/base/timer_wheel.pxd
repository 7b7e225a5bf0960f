# A timer wheel: slots of one tick each, with linked timers. It allocates nothing and is independent of the owners.

from libc.stdint cimport int32_t, uint32_t

cdef enum:
    WHEEL_SLOTS = 512          # ticks that the wheel spans; a timer due later stays for another round

cdef struct Timer:
    Timer* next                # in the same slot
    Timer* previous
    int slot                   # -1 = not running
    uint32_t due               # tick

cdef struct TimerWheel:
    Timer* slots[WHEEL_SLOTS]
    uint32_t now               # tick up to which the wheel has been turned


cdef inline void timer_start(TimerWheel* wheel, Timer* timer, uint32_t due) noexcept nogil:
    """Start a timer that is not running, in the slot of its tick, or in the last one."""
    timer.due = due
    timer.slot = (wheel.now + min(max(<int32_t>(due - wheel.now), 1), WHEEL_SLOTS - 1)) % WHEEL_SLOTS
    timer.previous = NULL
    timer.next = wheel.slots[timer.slot]
    if timer.next != NULL:
        timer.next.previous = timer
    wheel.slots[timer.slot] = timer


cdef inline void timer_stop(TimerWheel* wheel, Timer* timer) noexcept nogil:
    """Stop a timer; no effect if it is not running."""
    if timer.slot < 0:
        return
    if timer.next != NULL:
        timer.next.previous = timer.previous
    if timer.previous != NULL:
        timer.previous.next = timer.next
    else:
        wheel.slots[timer.slot] = timer.next
    timer.next = timer.previous = NULL
    timer.slot = -1


cdef inline Timer* wheel_pop(TimerWheel* wheel, uint32_t tick) noexcept nogil:
    """The next timer that is due at `tick` or before, stopped. NULL: there is none, and the wheel is at `tick`."""
    cdef Timer* timer
    while True:
        timer = wheel.slots[wheel.now % WHEEL_SLOTS]
        if timer == NULL:
            if wheel.now == tick:
                return NULL
            wheel.now += 1
            continue
        timer_stop(wheel, timer)
        if <int32_t>(timer.due - wheel.now) <= 0:
            return timer
        timer_start(wheel, timer, timer.due)
