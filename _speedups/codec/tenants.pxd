# Names of tenants' clients. A topic `site/1` of a tenant's client is `$tenant/NAME/site/1` within the broker, and
# its client identifier `c1` is `$tenant/NAME/c1`: the prefix is put in front where packets arrive, and taken away where
# they leave. So nothing between has to know tenants, except that `$` hides a level from wildcards behind the prefix,
# too.

from libc.stdint cimport uint8_t
from libc.string cimport memchr, memcmp

cdef enum:
    TENANT_SIZE = 8            # bytes of `$tenant/`
    TENANT_LEVELS = 2          # of `$tenant/NAME/`


cdef inline bint begins_tenant(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Whether the name begins with `$tenant/`, which no client may write."""
    return n >= TENANT_SIZE and p[0] == c'$' and memcmp(p, b"$tenant/", TENANT_SIZE) == 0


cdef inline Py_ssize_t tenant_size(const uint8_t* p, Py_ssize_t n) noexcept nogil:
    """Bytes of `$tenant/NAME/` at the front of a topic name, topic filter or client identifier; 0: it has no tenant."""
    cdef const uint8_t* slash
    if not begins_tenant(p, n):
        return 0
    slash = <const uint8_t*>memchr(p + TENANT_SIZE, c'/', n - TENANT_SIZE)
    return slash + 1 - p if slash != NULL else 0
