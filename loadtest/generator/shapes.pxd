# The topics and subscriptions of each shape. Both are computed. The number of deliveries of a message is thus fixed
# before it is sent, and a receiver can check that it has a subscription for a message.

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from .wire cimport put_bytes, put_decimal


cdef enum:
    PAIRS = 0       # topic i: publisher i, subscriber i
    FANOUT = 1      # one topic: all publishers, all subscribers
    FANIN = 2       # topic i: publisher i; all subscribers with one `+` filter
    WILD = 3        # random topics; each subscriber has many filters of one kind
    SHARED = 4      # topic i: publisher i; all subscribers share one `+` filter
    METRICS = 10    # WILD: per device
    TOPIC_SIZE = 96  # max. bytes of a topic name or filter
    PREFIX_SIZE = 32  # max. bytes of their prefix


cdef enum:          # WILD: kinds of subscriber
    DEVICE = 0      # site/+/dev/<d>/#
    METRIC = 1      # site/<s>/dev/+/m<m>
    STATION = 2     # site/<s>/dev/<d>/+
    DEVICE_PERCENT = 5
    METRIC_PERCENT = 25  # STATION is the rest


cdef struct Shape:
    int kind
    uint32_t publishers
    uint32_t subscribers
    uint32_t topics
    uint32_t sites          # WILD, as all below
    uint32_t devices        # per site
    uint32_t filters        # per subscriber; filters of one subscriber never overlap
    char[PREFIX_SIZE] prefix  # of every topic name and filter
    size_t prefix_size
    uint16_t* of_device     # filters of kind DEVICE by device; owned, as the next two
    uint16_t* of_metric     # of kind METRIC by metric * sites + site
    uint16_t* of_station    # of kind STATION by device * sites + site


cdef inline int subscriber_kind(const Shape* shape, uint32_t subscriber) noexcept nogil:
    cdef uint64_t percent = <uint64_t>subscriber * 100 // shape.subscribers
    if percent < DEVICE_PERCENT:
        return DEVICE
    return METRIC if percent < DEVICE_PERCENT + METRIC_PERCENT else STATION


cdef inline uint32_t kind_size(const Shape* shape, int kind) noexcept nogil:
    """Number of different filters of a kind."""
    if kind == DEVICE:
        return shape.devices
    return shape.sites * (METRICS if kind == METRIC else shape.devices)


cdef inline uint32_t filter_number(const Shape* shape, uint32_t subscriber, uint32_t which) noexcept nogil:
    cdef uint64_t number = <uint64_t>subscriber * shape.filters + which
    return <uint32_t>(number % kind_size(shape, subscriber_kind(shape, subscriber)))


cdef inline uint32_t next_random(uint64_t* state) noexcept nogil:
    """Marsaglia's xorshift, multiplied: good enough for topics, and the same in every run."""
    state[0] ^= state[0] >> 12
    state[0] ^= state[0] << 25
    state[0] ^= state[0] >> 27
    return <uint32_t>((state[0] * <uint64_t>2685821657736338717) >> 32)


cdef inline uint32_t pick_topic(const Shape* shape, uint32_t publisher, uint64_t* random) noexcept nogil:
    if shape.kind == WILD:
        return <uint32_t>((<uint64_t>next_random(random) * shape.topics) >> 32)
    return 0 if shape.kind == FANOUT else publisher


cdef inline uint32_t topic_metric(const Shape* shape, uint32_t topic) noexcept nogil:
    return topic % METRICS


cdef inline uint32_t topic_device(const Shape* shape, uint32_t topic) noexcept nogil:
    return topic // METRICS % shape.devices


cdef inline uint32_t topic_site(const Shape* shape, uint32_t topic) noexcept nogil:
    return topic // METRICS // shape.devices


cdef inline uint32_t deliveries(const Shape* shape, uint32_t topic) noexcept nogil:
    """Number of deliveries that a message to this topic must cause."""
    cdef uint32_t site, device
    if shape.kind == PAIRS or shape.kind == SHARED:
        return 1
    if shape.kind != WILD:
        return shape.subscribers
    site = topic_site(shape, topic)
    device = topic_device(shape, topic)
    return (
        <uint32_t>shape.of_device[device]
        + shape.of_metric[topic_metric(shape, topic) * shape.sites + site]
        + shape.of_station[device * shape.sites + site]
    )


cdef inline bint is_subscribed(const Shape* shape, uint32_t subscriber, uint32_t topic) noexcept nogil:
    cdef int kind
    cdef uint64_t number, size
    if topic >= shape.topics:
        return False
    if shape.kind == PAIRS:
        return topic == subscriber
    if shape.kind != WILD:
        return True
    kind = subscriber_kind(shape, subscriber)
    if kind == DEVICE:
        number = topic_device(shape, topic)
    elif kind == METRIC:
        number = topic_metric(shape, topic) * shape.sites + topic_site(shape, topic)
    else:
        number = topic_device(shape, topic) * shape.sites + topic_site(shape, topic)
    size = kind_size(shape, kind)
    return (number + size - <uint64_t>subscriber * shape.filters % size) % size < shape.filters


cdef inline uint8_t* put_topic(const Shape* shape, uint32_t topic, uint8_t* p) noexcept nogil:
    p = put_bytes(p, shape.prefix, shape.prefix_size)
    if shape.kind != WILD:
        return put_decimal(put_bytes(p, b"load/topic/", 11), topic)
    p = put_decimal(put_bytes(p, b"site/", 5), topic_site(shape, topic))
    p = put_decimal(put_bytes(p, b"/dev/", 5), topic_device(shape, topic))
    return put_decimal(put_bytes(p, b"/m", 2), topic_metric(shape, topic))


cdef inline uint32_t filter_count(const Shape* shape) noexcept nogil:
    return shape.filters if shape.kind == WILD else 1


cdef inline uint8_t* put_filter(const Shape* shape, uint32_t subscriber, uint32_t which, uint8_t* p) noexcept nogil:
    cdef uint32_t number
    cdef int kind
    if shape.kind == PAIRS or shape.kind == FANOUT:
        return put_topic(shape, 0 if shape.kind == FANOUT else subscriber, p)
    if shape.kind == SHARED:
        p = put_bytes(p, b"$share/load/", 12)
    p = put_bytes(p, shape.prefix, shape.prefix_size)
    if shape.kind == FANIN or shape.kind == SHARED:
        return put_bytes(p, b"load/topic/+", 12)
    number = filter_number(shape, subscriber, which)
    kind = subscriber_kind(shape, subscriber)
    if kind == DEVICE:
        return put_bytes(put_decimal(put_bytes(p, b"site/+/dev/", 11), number), b"/#", 2)
    p = put_decimal(put_bytes(p, b"site/", 5), number % shape.sites)
    if kind == METRIC:
        return put_decimal(put_bytes(p, b"/dev/+/m", 8), number // shape.sites)
    return put_bytes(put_decimal(put_bytes(p, b"/dev/", 5), number // shape.sites), b"/+", 2)


cdef inline int count_filters(Shape* shape) noexcept nogil:
    """Fill the tables of a WILD shape. Returns 0, or -1 without memory."""
    cdef uint16_t* table
    cdef uint32_t subscriber, which
    cdef int kind
    shape.of_device = <uint16_t*>calloc(shape.devices, sizeof(uint16_t))
    shape.of_metric = <uint16_t*>calloc(shape.sites * METRICS, sizeof(uint16_t))
    shape.of_station = <uint16_t*>calloc(<size_t>shape.devices * shape.sites, sizeof(uint16_t))
    if shape.of_device == NULL or shape.of_metric == NULL or shape.of_station == NULL:
        return -1
    for subscriber in range(shape.subscribers):
        kind = subscriber_kind(shape, subscriber)
        table = shape.of_device if kind == DEVICE else shape.of_metric if kind == METRIC else shape.of_station
        for which in range(shape.filters):
            table[filter_number(shape, subscriber, which)] += 1
    return 0


cdef inline void free_shape(Shape* shape) noexcept nogil:
    free(shape.of_device)
    free(shape.of_metric)
    free(shape.of_station)


cdef inline void set_prefix(Shape* shape, const char* prefix, size_t size) noexcept nogil:
    memcpy(shape.prefix, prefix, size)
    shape.prefix_size = size
