"""The tick: the unit of the turn's clock and of all timers; the constants are in tick.pxd."""
