# Reasons not to read from a client, as bits of one byte: its packets are handled, and its socket is read, when none is set.

cdef enum:
    CONNECT_PENDING = 1        # its CONNECT is being decided
    HANDLER_BUSY = 2           # the handler says when it goes on
    RATE_LIMITED = 4           # it has used up its rate, or that of its listener
    STORE_BEHIND = 8           # the store has too much to write already
    CLOSE_PENDING = 16         # the connection is to end
    OUTPUT_FULL = 32           # it does not read what is sent to it: its socket is not read, packets are handled
    PARSE_GATE = 31            # bits that keep packets from being handled
