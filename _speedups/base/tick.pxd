# The tick: the unit of the turn's clock and of all timers. For C and for Python (tick.pyi).

cpdef enum:
    TICKS_PER_SECOND = 4
    MS_PER_TICK = 250
