# The interface of topics.pyx for other compiled modules; topics.pyx describes the rules.

from libc.stdint cimport uint8_t, uint32_t

cdef enum:
    TOPIC_BYTES_MAX = 65_535          # bytes of a name or filter [MQTT-4.7.3-3]
    TOPIC_CHARACTERS_MAX_3 = 32_767   # characters of a name or filter at protocol level 3
    TOPIC_LEVELS_MAX = 200            # levels of a name or filter, unless the caller passes another limit

cdef enum:
    SHARE_SIZE = 7                    # bytes of `$share/`

cdef enum:
    LEVELS_OF_ONE = 8                 # levels and ...
    BYTES_OF_ONE = 1024               # ... bytes of a filter that counts as one subscription

cdef enum TopicFault:
    TOPIC_OK = 0
    TOPIC_EMPTY                       # [MQTT-4.7.3-1]
    TOPIC_TOO_LONG                    # [MQTT-4.7.3-3], or the shorter limit of level 3
    TOPIC_TOO_MANY_LEVELS             # the broker's limit: bounds the depth of the subscription tree
    TOPIC_BAD_UTF8                    # [MQTT-1.5.3-1] and [MQTT-1.5.3-2]
    TOPIC_WILDCARD_IN_NAME            # [MQTT-3.3.2-2]
    TOPIC_MISPLACED_HASH              # [MQTT-4.7.1-2]
    TOPIC_MISPLACED_PLUS              # [MQTT-4.7.1-3]
    TOPIC_CONTROL_CHARACTER           # [MQTT-1.5.3], unless the configuration accepts them

cdef int check_utf8(const uint8_t* p, Py_ssize_t n) noexcept nogil
cdef bint holds_control_character(const uint8_t* p, Py_ssize_t n) noexcept nogil
cdef int check_topic_name(const uint8_t* p, Py_ssize_t n, int level, int max_levels) noexcept nogil
cdef int check_topic_filter(const uint8_t* p, Py_ssize_t n, int level, int max_levels) noexcept nogil
cdef Py_ssize_t shared_filter_at(const uint8_t* p, Py_ssize_t n) noexcept nogil
cdef uint32_t weight_of(const uint8_t* p, Py_ssize_t n) noexcept nogil
cpdef bint is_shared(topic_filter) except -1
cdef object fault_text(int fault)
cdef int match_topic(
    const uint8_t* topic_filter, Py_ssize_t filter_size, const uint8_t* topic_name, Py_ssize_t name_size
) noexcept nogil
