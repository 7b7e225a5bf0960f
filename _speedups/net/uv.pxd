# The part of libuv that uvloop_driver.pyx uses, as libuv documents it. Loops and handles are plain pointers here:
# only libuv knows their layout.

from libc.stdint cimport uint64_t

ctypedef void (*uv_callback)(void* handle) noexcept nogil
ctypedef void (*uv_visit)(void* handle, void* argument) noexcept nogil

cdef enum:
    UV_CHECK = 2               # a uv_handle_type

cdef struct uv_handle_t:       # the fields that all handles begin with
    void* data
    void* loop
    int type

cdef struct Libuv:             # nothing but pointers: filled in the order of FUNCTIONS in uvloop_driver.pyx
    unsigned int (*version)() noexcept nogil
    int (*backend_fd)(const void* loop) noexcept nogil
    int (*backend_timeout)(const void* loop) noexcept nogil
    void (*update_time)(void* loop) noexcept nogil
    uint64_t (*now)(const void* loop) noexcept nogil
    void (*walk)(void* loop, uv_visit, void* argument) noexcept nogil
    size_t (*handle_size)(int type) noexcept nogil
    int (*is_active)(const void* handle) noexcept nogil
    int (*check_init)(void* loop, void* handle) noexcept nogil
    int (*check_start)(void* handle, uv_callback) noexcept nogil
    int (*idle_init)(void* loop, void* handle) noexcept nogil
    int (*idle_start)(void* handle, uv_callback) noexcept nogil
    int (*idle_stop)(void* handle) noexcept nogil
    void (*unref)(void* handle) noexcept nogil
    void (*close)(void* handle, uv_callback) noexcept nogil
