"""The counters of a node: constants for C and for Python (counters.pxd), and their names."""


def counter_names():
    """The names of all counters in lower case, in the order of their indices."""
    values = {value: name.lower() for name, value in globals().items() if name.isupper() and name != "COUNTER_COUNT"}
    return tuple(values[i] for i in range(COUNTER_COUNT))
