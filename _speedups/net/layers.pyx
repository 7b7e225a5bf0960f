"""The layers between a channel and its socket, for output: bytes of MQTT in a frame, in a TLS record."""

from libc.errno cimport EAGAIN, EINTR, errno
from libc.string cimport memcpy, memset

from .posix cimport MSG_DONTWAIT, MSG_NOSIGNAL, iovec, msghdr, sendmsg
from .tls cimport FAILED, RECORD_MAX, WANTS_READ, WANTS_WRITE


cdef Py_ssize_t push(Tls tls, WebSocket frames, int fd, uint8_t* record, const uint8_t* p, Py_ssize_t size) except -4:
    """Send some of these bytes of MQTT, through one layer or both.

    Returns how many; perhaps 0, if only a part of the frame's head was sent. Else WANTS_WRITE, FAILED, or another
    negative number: the client has closed. `record` has room for one record.
    """
    cdef Py_ssize_t sent
    if frames is None:
        sent = tls.write(p, size)
    else:
        frames.frame(size)
        # The head covers less than the whole output, if output was added since the frame began.
        sent = push_frame(tls, frames, fd, record, p, frames.framed)
    if sent > 0:
        return sent if frames is None else frames.sent(sent)
    return sent or WANTS_READ


cdef Py_ssize_t push_frame(Tls tls, WebSocket frames, int fd, uint8_t* record, const uint8_t* p,
                           Py_ssize_t size) except -4:
    """Send some of the prefix and of the payload with one call; returns the bytes sent of both."""
    cdef uint8_t* prefix = frames.prefix + frames.prefix_start
    cdef Py_ssize_t head = frames.prefix_end - frames.prefix_start, sent
    cdef iovec parts[2]
    cdef msghdr message
    if tls is not None:
        # A blocked write is retried with the same bytes: they depend only on the frame.
        size = min(size, RECORD_MAX - head)
        memcpy(record, prefix, head)
        if size:
            memcpy(record + head, p, size)
        return tls.write(record, head + size)
    memset(&message, 0, sizeof(message))
    parts[0].iov_base, parts[0].iov_len = prefix, head
    parts[1].iov_base, parts[1].iov_len = <void*>p, size
    message.msg_iov, message.msg_iovlen = parts, 2
    sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
    if sent < 0:
        return WANTS_WRITE if errno == EAGAIN or errno == EINTR else FAILED
    return sent
