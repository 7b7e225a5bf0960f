# Reasons not to read from a client, as bits of one byte. If none is set, its packets are handled and its socket is
# read.

cdef enum:
    CONNECT_PENDING = 1        # its CONNECT is being processed
    HANDLER_BUSY = 2           # the handler resumes the client
    RATE_LIMITED = 4           # it has used up its rate, or the rate of its listener
    STORE_BEHIND = 8           # the store has too many unwritten bytes
    CLOSE_PENDING = 16         # the connection will end
    OUTPUT_FULL = 32           # it does not read its output: its socket is not read, packets are handled
    PARSE_GATE = 31            # bits that keep packets from being handled
