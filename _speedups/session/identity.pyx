"""The verified identity of clients.

Each client with rights of its own has an identity of its own. A change of rights replaces all of them, so the garbage
collector must not have to look at them: with 100 000 new objects, one collection takes 30 ms.
"""

cimport cython

from .rights cimport Rights

FIELDS = (
    "username", "rights", "expires", "rules", "roles", "granted", "method", "listener", "tenant", "claims",
    "credential",
)


@cython.final
@cython.no_gc                                     # texts, numbers and rules, which refer to no identity: no cycles
cdef class Identity:
    """The verified identity of clients: their sessions, their rights and their quotas are bound to it. It is immutable.

    Args:
        username: verified; None: anonymous.
        rights: None: may publish and read everything.
        expires: seconds since 1970 at which the connection ends; None: it stays.
        rules: access rules of the user; None: it has none.
        roles: names of its roles, whose rules are added; with a role the client may do nothing else.
        granted: rights that an authenticator set, instead of rules.
        method: name of the authentication method; empty: not verified.
        listener: name of the listener.
        tenant: name of its tenant; empty: it has none.
        claims: claims of its token that rules of tenants name.
        credential: digest of the stored credentials that were verified; empty: none are stored.

    Raises:
        TypeError: an argument has another type.
    """

    cdef readonly str username
    cdef readonly Rights rights
    cdef readonly object expires
    cdef readonly tuple rules
    cdef readonly tuple roles
    cdef readonly Rights granted
    cdef readonly str method
    cdef readonly str listener
    cdef readonly str tenant
    cdef readonly tuple claims
    cdef readonly bytes credential

    def __init__(
        self, str username=None, Rights rights=None, expires=None, tuple rules=None, tuple roles not None=(),
        Rights granted=None, str method not None="", str listener not None="default", str tenant not None="",
        tuple claims not None=(), bytes credential not None=b"",
    ):
        self.username, self.rights, self.expires, self.rules, self.roles = username, rights, expires, rules, roles
        self.granted, self.method, self.listener, self.tenant = granted, method, listener, tenant
        self.claims, self.credential = claims, credential

    cpdef Identity having(self, Rights rights):
        """The identity with these rights."""
        cdef Identity found = Identity.__new__(Identity)
        found.username, found.rights, found.expires, found.rules = self.username, rights, self.expires, self.rules
        found.roles, found.granted, found.method, found.listener = self.roles, self.granted, self.method, self.listener
        found.tenant, found.claims, found.credential = self.tenant, self.claims, self.credential
        return found

    def renewed(self, tuple rules, tuple roles not None, bytes credential not None):
        """The identity with the present rules, roles and credentials of its user; itself if they are as they were."""
        if rules == self.rules and roles == self.roles and credential == self.credential:
            return self
        cdef Identity found = self.having(self.rights)
        found.rules, found.roles, found.credential = rules, roles, credential
        return found

    def replace(self, **changes):
        """The identity with other values of some fields."""
        return Identity(**(dict(zip(FIELDS, self.values(), strict=True)) | changes))

    cdef tuple values(self):
        return (
            self.username, self.rights, self.expires, self.rules, self.roles, self.granted, self.method, self.listener,
            self.tenant, self.claims, self.credential,
        )

    def __eq__(self, other):
        return self is other or isinstance(other, Identity) and self.values() == (<Identity>other).values()

    def __hash__(self):
        return hash(self.values())

    def __repr__(self):
        found = [f"{name}={value!r}" for name, value in zip(FIELDS, self.values(), strict=True)]
        return f"Identity({', '.join(found)})"
