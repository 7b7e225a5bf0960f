# The settings of a shared subscription. See group_settings.pyx.

from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef enum Strategy:
    ROTATION                       # any subscriber with room, in turn
    BY_TOPIC                       # messages to one topic keep their order
    BY_PUBLISHER                   # messages from one client keep their order


cdef class GroupSettings:
    cdef readonly uint32_t window            # messages that a subscriber has and has not acknowledged
    cdef readonly uint64_t max_messages      # that wait
    cdef readonly uint64_t max_bytes
    cdef readonly bint drop_oldest           # when the queue is full; else the new message is dropped
    cdef uint8_t strategy_number
    cdef readonly uint32_t max_expiry        # seconds that a message may wait; 0 = as long as its publisher wants
    cdef readonly bint last_value            # only the newest message of a topic waits
    cdef readonly uint32_t max_deliveries    # attempts, after which a message is a dead letter; 0 = no limit
    cdef readonly bytes dead_letter_topic    # b"": dead letters are dropped
    cdef readonly bint paused                # subscribers get no new messages
    cdef readonly bint declared              # the group exists without subscribers
    cdef readonly bytes declaration          # the settings that it was declared with, as a text; b"": not declared
