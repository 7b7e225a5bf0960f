# The property block of level 5. See properties.pyx.

from _speedups.base.cursor cimport Cursor

cdef dict decode_properties(Cursor* c, int packet_type, int owner)
cdef bytes encode_properties(int packet_type, int owner, dict properties)
