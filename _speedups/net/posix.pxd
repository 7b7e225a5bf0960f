# The system calls of this package, and epoll for `loadtest`: epoll, sockets, clock.

from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        void* ptr
        uint64_t u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event*)
    int epoll_wait(int, epoll_event*, int, int)
    int EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLL_CLOEXEC
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP, EPOLLRDHUP, EPOLLET

cdef extern from "<sys/socket.h>" nogil:
    struct sockaddr:
        pass
    ssize_t recv(int, void*, size_t, int)
    ssize_t send(int, const void*, size_t, int)
    int accept4(int, sockaddr*, uint32_t*, int)
    int shutdown(int, int)
    int setsockopt(int, int, int, const void*, uint32_t)
    int getsockopt(int, int, int, void*, uint32_t*)
    struct iovec:
        void* iov_base
        size_t iov_len
    struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    ssize_t sendmsg(int, const msghdr*, int)
    struct linger:
        int l_onoff
        int l_linger
    int MSG_NOSIGNAL, MSG_DONTWAIT, MSG_PEEK, SOCK_NONBLOCK, SOCK_CLOEXEC, SHUT_WR, SOL_SOCKET, SO_LINGER, SO_PEERCRED
    int AF_UNIX, AF_INET, AF_INET6

cdef extern from "<string.h>" nogil:
    void* memmem(const void*, size_t, const void*, size_t)

cdef extern from "<unistd.h>" nogil:
    int close(int)

cdef extern from "<time.h>" nogil:
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec*)
    int nanosleep(const timespec*, timespec*)
    int CLOCK_MONOTONIC

cdef extern from "<sys/timerfd.h>" nogil:
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int, int)
    int timerfd_settime(int, int, const itimerspec*, itimerspec*)
    int TFD_CLOEXEC, TFD_NONBLOCK

cdef extern from "<sys/prctl.h>" nogil:
    int prctl(int, unsigned long)
    int PR_SET_TIMERSLACK

cdef extern from "<malloc.h>" nogil:
    int mallopt(int, int)
    int M_MMAP_THRESHOLD, M_TRIM_THRESHOLD


cdef inline int64_t now() noexcept nogil:
    """Nanoseconds, monotonic."""
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return <int64_t>t.tv_sec * 1000000000 + t.tv_nsec
