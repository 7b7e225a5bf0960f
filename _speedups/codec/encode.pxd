# What other compiled modules may call. See encode.pyx.

cpdef bytes encode(object packet, int level=*)
