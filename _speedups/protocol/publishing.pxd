# The end of a PUBLISH: published or refused, and acknowledged. See publishing.pyx.

from libc.stdint cimport uint8_t, uint16_t

from ..routing.router cimport Router
from ..session.message cimport Publication
from ..session.rights cimport MAY_PUBLISH, Rights
from ..session.session cimport Session
from ..session.subscriber cimport Plan
from ..session.turn cimport Outlet

cdef int accept_publish(Outlet outlet, Router router, Publication* publication, uint16_t packet_id,
                        bint bounded) except -1
cdef int repeat_pubrec(Outlet outlet, Session session, const Publication* publication, uint16_t packet_id) except -1
cdef int refuse_publish(Outlet outlet, Session session, const Publication* publication, uint16_t packet_id,
                        uint8_t why, uint8_t code=*) except -1
cdef int release_publish(Outlet outlet, Router router, Session session, uint16_t packet_id) except -1
cdef int reserved_refusal(Router router, Session session, const Publication* publication, const uint8_t* name,
                          Py_ssize_t n) except -1


cdef inline bint has_schema(Rights bound, const Publication* publication, const uint8_t* name,
                            Py_ssize_t n) noexcept:
    """Whether the topic name, which is `name` to clients, is one of `bound`. Its plan stores that it is not."""
    cdef Plan* plan = <Plan*>publication.plan if publication.looked_up else NULL
    if plan != NULL and plan.unbound == bound.number:
        return False
    if bound.may(name, n, MAY_PUBLISH):
        return True
    if plan != NULL:
        plan.unbound = bound.number
    return False


cdef inline bint may_publish(Rights rights, const Publication* publication) noexcept:
    """Whether a client with these rights may publish to the topic name.

    The plan of the name stores the rights that last allowed it.
    """
    cdef Plan* plan = <Plan*>publication.plan if publication.looked_up else NULL
    if plan != NULL and plan.publisher == rights.number:
        return True
    if not rights.may(publication.topic, publication.topic_length, MAY_PUBLISH):
        return False
    if plan != NULL:
        plan.publisher = rights.number
    return True
