"""The options byte of a subscription [5: 3.8.3.1]: its bits, as SUBSCRIBE has them."""

MAXIMUM_QOS = 3
NO_LOCAL = 4
RETAIN_AS_PUBLISHED = 8
STORED_OPTIONS = MAXIMUM_QOS | NO_LOCAL | RETAIN_AS_PUBLISHED  # Retain Handling counts only when a client subscribes
RETAIN_HANDLING_SHIFT = 4  # bits below Retain Handling
