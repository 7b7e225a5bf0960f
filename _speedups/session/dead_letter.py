"""Dead letters: messages of shared subscriptions that were sent several times without success."""

from typing import NamedTuple


class DeadLetter(NamedTuple):
    """A message that no subscriber of a group has acknowledged."""

    group: bytes  # `$share/NAME/FILTER`
    to: bytes  # topic name that it is published to; empty: it is dropped
    topic: bytes
    payload: bytes
    qos: int
    properties: bytes  # a property block without its length
    deliveries: int
    code: int  # reason code with which its last receiver refused it; 0 = it was not acknowledged
