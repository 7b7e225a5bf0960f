"""Runs a reactor within uvloop, with one wait for both.

libuv waits in its own epoll set. If the reactor's set were within that one, each message that arrives alone would
cost a second wait, several reads of the clock and a callback through Python. So libuv's set is within the reactor's,
and libuv never waits: an idle handle keeps it from that. The reactor waits instead, in the check phase of each
iteration of the loop. It serves one turn after the other until the loop has something to do: a callback, a timer that
is due, a file descriptor that is ready or that libuv must add to its set, or output that uvloop writes in its own check
phase.

The kernel programs its timer for each wait with a time limit, which is expensive on a virtual machine. So the limit is
a timer descriptor within the reactor's set; the driver sets it only when the deadline of the loop's next timer changes.

libuv is part of uvloop's module, and its functions are found there by name.
"""

from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t, uintptr_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from .posix cimport (
    CLOCK_MONOTONIC, TFD_CLOEXEC, TFD_NONBLOCK, close, itimerspec, timerfd_create, timerfd_settime,
)
from .reactor cimport Reactor
from .uv cimport UV_CHECK, Libuv, uv_callback, uv_handle_t, uv_visit

import ctypes

import uvloop.loop

FUNCTIONS = (                  # in the order of Libuv
    "uv_version", "uv_backend_fd", "uv_backend_timeout", "uv_update_time", "uv_now", "uv_walk", "uv_handle_size",
    "uv_is_active", "uv_check_init", "uv_check_start", "uv_idle_init", "uv_idle_start",
    "uv_idle_stop", "uv_unref", "uv_close",
)
OLDEST = 1, 45                 # version of libuv from which uv_backend_timeout considers descriptors to be added
cdef enum:
    HANDLE_MAX = 512           # bytes; a handle of libuv has at most as many
    EARLY = 10                 # milliseconds by which the alarm precedes a timer: libuv's clock may lag behind


class Unsupported(Exception):
    """The loop is not of uvloop, or its libuv lacks something that the driver needs."""


cdef struct Handle:
    char handle[HANDLE_MAX]    # libuv's
    void* driver               # its UvloopDriver: an owned reference until the handle is closed


cdef class UvloopDriver:
    """Runs reactors within a loop of uvloop, one at a time; a loop has one driver.

    Args:
        loop: a uvloop.Loop.

    Raises:
        Unsupported: a ReaderDriver does the same for any loop.
    """

    cdef object loop
    cdef void* uv                  # the loop
    cdef Libuv libuv
    cdef void* writes              # the check handle with which uvloop writes the queued output of its transports
    cdef Reactor reactor           # None: not started
    cdef Handle* check
    cdef Handle* idle
    cdef int alarm                 # a timer descriptor ...
    cdef uint64_t alarm_set        # ... and the time of libuv for which it is set

    def __cinit__(self):
        self.alarm = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK)
        if self.alarm < 0:
            raise OSError("no timer descriptor")

    def __dealloc__(self):
        if self.alarm >= 0:
            close(self.alarm)

    def __init__(self, loop not None):
        if not isinstance(loop, uvloop.loop.Loop):
            raise Unsupported("not a loop of uvloop")
        self.loop = loop
        self.uv = PyCapsule_GetPointer(uvloop.loop.libuv_get_loop_t_ptr(loop), NULL)
        library = ctypes.CDLL(uvloop.loop.__file__)
        for i, name in enumerate(FUNCTIONS):
            if not hasattr(library, name):
                raise Unsupported(f"uvloop's module has no {name}")
            (<void**>&self.libuv)[i] = <void*><uintptr_t>ctypes.cast(getattr(library, name), ctypes.c_void_p).value
        version = self.libuv.version()
        if (version >> 16, version >> 8 & 0xFF) < OLDEST or self.libuv.handle_size(UV_CHECK) > HANDLE_MAX:
            raise Unsupported("libuv has another version")
        self.libuv.walk(self.uv, <uv_visit>find_check, <void*>self)
        if self.writes == NULL:
            raise Unsupported("uvloop has no check handle")

    def start(self, Reactor reactor not None):
        """Serve the reactor's connections from now on."""
        if self.reactor is not None:
            self.stop(self.reactor)
        self.check, self.idle = self.handle(), self.handle()
        self.libuv.check_init(self.uv, self.check)
        self.libuv.idle_init(self.uv, self.idle)
        self.libuv.unref(self.check)               # they don't keep the loop from ending
        self.libuv.unref(self.idle)
        self.libuv.check_start(self.check, <uv_callback>serve)
        self.libuv.idle_start(self.idle, ignore)
        self.reactor = reactor
        reactor.watch_loop(self.libuv.backend_fd(self.uv), self.alarm)

    def stop(self, Reactor reactor not None):
        """Serve the reactor's connections no more. Without effect if it is not served."""
        if self.reactor is not reactor:
            return
        self.reactor = None
        reactor.watch_loop(-1, -1)
        self.libuv.close(self.check, <uv_callback>release)
        self.libuv.close(self.idle, <uv_callback>release)

    def wake(self, Reactor reactor not None):
        """Run a turn of the reactor soon: without effect if it is served, as the next check phase does that."""
        if self.reactor is not reactor:
            self.loop.call_soon(reactor.run)

    def call_soon(self, callback):
        """Call it when the caller has returned to the event loop."""
        self.loop.call_soon(callback)

    def add_reader(self, int fd, callback):
        """Call it whenever the descriptor is readable, by the event loop."""
        self.loop.add_reader(fd, callback)

    def remove_reader(self, int fd):
        """Undo `add_reader`."""
        self.loop.remove_reader(fd)

    cdef Handle* handle(self) except NULL:
        cdef Handle* handle = <Handle*>calloc(1, sizeof(Handle))
        if handle == NULL:
            raise MemoryError
        handle.driver = <void*>self
        Py_INCREF(self)
        return handle

    cdef int serve(self) except -1:
        """Serve turns until the loop has something to do; wait for input between them."""
        cdef Reactor reactor = self.reactor
        cdef int timeout = -1
        self.libuv.idle_stop(self.idle)
        try:
            while timeout and self.reactor is reactor:
                timeout = self.patience()
                if reactor.take_turn(timeout):
                    break
        finally:
            if self.reactor is reactor:            # else it has been stopped: the loop waits by itself
                self.libuv.idle_start(self.idle, ignore)
        return 0

    cdef int patience(self) noexcept:
        """Milliseconds for which the loop has nothing to do, unless a descriptor is ready; -1: until then."""
        cdef int timeout
        if self.libuv.is_active(self.writes):
            return 0
        self.libuv.update_time(self.uv)
        timeout = self.libuv.backend_timeout(self.uv)
        if timeout > 2 * EARLY:
            self.set_alarm(timeout - EARLY)
            return -1
        return timeout

    cdef void set_alarm(self, int timeout) noexcept:
        """Have the alarm end a wait after these milliseconds."""
        cdef itimerspec moment
        cdef uint64_t at = self.libuv.now(self.uv) + timeout
        if at != self.alarm_set:
            self.alarm_set = at
            memset(&moment, 0, sizeof(moment))
            moment.it_value.tv_sec = timeout // 1000
            moment.it_value.tv_nsec = timeout % 1000 * 1000000
            timerfd_settime(self.alarm, 0, &moment, NULL)


cdef void find_check(void* handle, void* driver) noexcept with gil:
    """Note uvloop's check handle, if it has one: this is called for each handle of the loop, the oldest first."""
    found = <UvloopDriver>driver
    if found.writes == NULL and (<uv_handle_t*>handle).type == UV_CHECK:
        found.writes = handle


cdef void ignore(void* handle) noexcept nogil:
    """The callback of the idle handle."""


cdef void serve(void* handle) noexcept with gil:
    """The callback of the check handle."""
    driver = <UvloopDriver>(<Handle*>handle).driver
    try:
        driver.serve()
    except BaseException as error:
        driver.loop.call_exception_handler({"message": "the reactor failed", "exception": error})


cdef void release(void* handle) noexcept with gil:
    """The callback of a closed handle."""
    Py_DECREF(<object>(<Handle*>handle).driver)
    free(handle)
