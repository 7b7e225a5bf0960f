# A truth value of one byte. `bint` is an int of four, which adds up in the fields of an object per client.

cdef extern from *:
    ctypedef bint flag "_Bool"
