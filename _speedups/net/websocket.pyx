"""WebSocket frames [RFC 6455, 5], in place: bytes with frames in, bytes of MQTT out, and the reverse.

Received payload is unmasked and compacted in its read buffer; a frame's announced length is only counted down, never
allocated. MQTT packets and frames are independent of each other [MQTT-6.0.0-2]. All output is one frame: `frame`
writes its head, and the payload stays in place. The owner of the socket sends `prefix` and then `framed` bytes of
payload. No extension is ever negotiated, so nothing is compressed.

Network input never raises: `code` and `fault` are set, a close frame is made, and further input is ignored.
"""

from libc.string cimport memcpy, memset


cdef inline int head_size(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """The size of the head at `p`; 0 if its `n` bytes don't determine it yet."""
    cdef int size = 2
    if n < 2:
        return 0
    if p[1] & 0x7F == 126:
        size += 2
    elif p[1] & 0x7F == 127:
        size += 8
    if p[1] & 0x80:
        size += 4
    return size if n >= size else 0


cdef inline void unmask(uint8_t* target, const uint8_t* source, Py_ssize_t n, uint8_t* mask) noexcept nogil:
    """Unmask `n` bytes into `target`, which is not after `source`; then rotate the mask to the next byte."""
    cdef uint64_t key, word
    cdef Py_ssize_t i = 0
    cdef int k
    cdef uint8_t turned[8]
    memcpy(&key, mask, 8)
    while i + 8 <= n:
        memcpy(&word, source + i, 8)
        word ^= key
        memcpy(target + i, &word, 8)
        i += 8
    while i < n:
        target[i] = source[i] ^ mask[i & 3]
        i += 1
    if n & 3:
        for k in range(8):
            turned[k] = mask[(k + n) & 3]
        memcpy(mask, turned, 8)


cdef class WebSocket:
    """The two directions of one connection.

    Args:
        client: this is the client's end, which masks its output (with zeros: that costs nothing).
    """

    def __cinit__(self, bint client=False):
        self.client = client

    # ---- received ----

    cdef Py_ssize_t decode(self, uint8_t* data, Py_ssize_t n) except -1:
        """Decode `n` bytes of frames in place; returns the bytes of payload, which are then at `data`."""
        cdef uint8_t* p = data
        cdef uint8_t* end = data + n
        cdef uint8_t* out = data
        cdef Py_ssize_t size
        while p < end and not self.code:
            if not self.inside:
                if self.head_size == 0 and head_size(p, end - p):
                    size = head_size(p, end - p)
                    self.begin(p)
                    p += size
                else:                                  # a head received in pieces
                    self.head[self.head_size] = p[0]
                    self.head_size += 1
                    p += 1
                    if not head_size(self.head, self.head_size):
                        continue
                    self.head_size = 0
                    self.begin(self.head)
                if self.code:
                    break
            size = <Py_ssize_t>min(self.left, <uint64_t>(end - p))
            if self.opcode & 8:
                unmask(self.control + self.control_size, p, size, self.mask)
                self.control_size += <uint8_t>size
            else:
                unmask(out, p, size, self.mask)
                out += size
            p += size
            self.left -= size
            if self.left == 0:
                self.finish()
        return out - data

    cdef int begin(self, const uint8_t* head) except -1:
        """Check the head of a frame [RFC 6455, 5.2]; its payload follows."""
        cdef uint64_t length = head[1] & 0x7F
        cdef const uint8_t* p = head + 2
        cdef int size, i
        self.opcode = head[0] & 15
        if head[0] & 0x70:
            return self.refuse(PROTOCOL_ERROR, "a frame with reserved bits")
        if (head[1] & 0x80 == 0) != self.client:
            return self.refuse(PROTOCOL_ERROR, "a frame without a mask" if not self.client else "a frame with a mask")
        if self.opcode & 8:
            if self.opcode > PONG or head[0] < 0x80 or length > CONTROL_MAX:
                return self.refuse(PROTOCOL_ERROR, "a control frame that is unknown, fragmented or too long")
        elif self.opcode == TEXT:
            return self.refuse(UNSUPPORTED_DATA, "a text frame [MQTT-6.0.0-1]")
        elif self.opcode > BINARY:
            return self.refuse(PROTOCOL_ERROR, "an unknown kind of frame")
        elif (self.opcode == CONTINUATION) != self.fragmented:
            return self.refuse(PROTOCOL_ERROR, "a fragment that doesn't fit the one before")
        else:
            self.fragmented = head[0] < 0x80
        if length >= 126:
            size = 2 if length == 126 else 8
            length = 0
            for i in range(size):
                length = length << 8 | p[i]
            p += size
            if length < (126 if size == 2 else 65536) or length >> 63:
                return self.refuse(PROTOCOL_ERROR, "a length that is not in its shortest form, or no length")
        if not self.client:
            memcpy(self.mask, p, 4)
            memcpy(self.mask + 4, p, 4)
        self.left = length
        self.inside = True
        self.control_size = 0
        return 0

    cdef int finish(self) except -1:
        """Handle the end of a frame's payload."""
        self.inside = False
        if self.opcode == PING:
            self.reply(PONG, self.control, self.control_size)
        elif self.opcode == CLOSE:
            if self.control_size == 1:
                return self.refuse(PROTOCOL_ERROR, "a close frame with half a reason")
            self.reply(CLOSE, self.control, min(self.control_size, 2))
            self.code = NORMAL
        return 0

    cdef int refuse(self, int code, str fault) except -1:
        """Close the connection after a protocol violation of the other end."""
        self.fault = f"WebSocket: {fault}"
        return self.close(code)

    def receive(self, bytes data not None):
        """Decode bytes with frames; returns the bytes of MQTT."""
        cdef bytearray taken = bytearray(data)
        cdef Py_ssize_t n = self.decode(<uint8_t*>taken, len(data))
        return bytes(taken[:n])

    # ---- sent ----

    cdef int reply(self, int opcode, const uint8_t* payload, Py_ssize_t n) noexcept:
        """Queue a control frame for the end of the current frame; only the latest is kept [5.5.3]."""
        cdef int head = 6 if self.client else 2
        memset(self.answer, 0, head)
        self.answer[0] = <uint8_t>(0x80 | opcode)
        self.answer[1] = <uint8_t>(n | (0x80 if self.client else 0))
        memcpy(self.answer + head, payload, n)
        self.answer_size = <uint8_t>(head + n)
        return 0

    cdef int close(self, int code) noexcept:
        """Send a close frame, once, and ignore further input."""
        cdef uint8_t payload[2]
        if self.code == 0:
            self.code = <uint16_t>code
            payload[0] = code >> 8
            payload[1] = code & 0xFF
            self.reply(CLOSE, payload, 2)
        return 0

    cdef bint owes(self) noexcept:
        """Whether bytes other than payload must be sent."""
        return self.answer_size > 0 or self.prefix_end > self.prefix_start

    cdef int frame(self, Py_ssize_t size) noexcept:
        """Begin a frame for `size` bytes of payload, unless one is being sent."""
        cdef uint8_t* p = self.prefix + self.prefix_end
        cdef int i
        if self.framed or self.prefix_start < self.prefix_end:
            return 0
        p = self.prefix
        memcpy(p, self.answer, self.answer_size)
        p += self.answer_size
        self.answer_size = 0
        if size:
            p[0] = 0x80 | BINARY
            p[1] = 0x80 if self.client else 0
            p += 2
            if size < 126:
                (p - 1)[0] |= <uint8_t>size
            else:
                (p - 1)[0] |= 126 if size < 65536 else 127
                for i in range(8 if size < 65536 else 56, -1, -8):
                    p[0] = size >> i & 0xFF
                    p += 1
            if self.client:
                p[0] = p[1] = p[2] = p[3] = 0
                p += 4
            self.framed = size
        self.prefix_start = 0
        self.prefix_end = <uint8_t>(p - self.prefix)
        return 0

    cdef Py_ssize_t sent(self, Py_ssize_t n) noexcept:
        """Note that `n` bytes of prefix and payload were sent; returns the bytes of payload among them."""
        cdef Py_ssize_t head = min(n, <Py_ssize_t>(self.prefix_end - self.prefix_start))
        self.prefix_start += <uint8_t>head
        self.framed -= n - head
        return n - head

    def send(self, bytes data not None):
        """Return these bytes of MQTT as a frame, after other pending frames."""
        self.frame(len(data))
        framed = self.prefix[self.prefix_start:self.prefix_end] + data
        self.sent(len(framed))
        return framed
