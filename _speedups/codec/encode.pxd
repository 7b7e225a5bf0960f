# The interface for other compiled modules. See encode.pyx.

cpdef bytes encode(object packet, int level=*)
