"""A message of a shared subscription goes to the queue of a session that another shard of the cluster has.

The message is assigned to this node until it is in the queue: the shard of the session gets it under a number, and the
assignment ends when that shard has replied. If this node dies in between, the number shows whether the session has the
message (deploy/docs/CLUSTER.md, "Groups over shards").
"""

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ..session.journal cimport Journal

import struct
from hashlib import sha1


def open_number(bytes number not None):
    """The group, place and digest in the number of a HandOver."""
    place, digest, size = struct.unpack_from("<Q4sH", number, 1)
    return number[15 + size:], place, digest


cdef class HandOver:
    """A message under way.

    Args:
        journal: ClusterJournal of the shard of the group.
        group, place: of the message.
        client_id: of the session.
        shard: of the session.
        key: hash of the message's key; -1: it has none.
        content: topic name, properties and payload.
    """

    def __init__(self, Journal journal not None, bytes group not None, uint64_t place, bytes client_id not None,
                 uint8_t shard, int64_t key, bytes content not None):
        self.journal, self.group, self.place = journal, group, place
        self.client_id, self.shard, self.key = client_id, shard, key
        self.number = (struct.pack("<cQ4sH", b"g", place, sha1(content).digest(), len(client_id))
                       + client_id + group)

    def arrived(self):
        """The session has the message: its assignment ends."""
        self.journal.handed_over(self)

    def failed(self):
        """The session has ended: the message goes back to its group."""
        self.journal.not_handed_over(self)

    def ask(self):
        """The reply was lost: whether the session has the message is to be asked."""
        self.journal.group_records.unsure.append(self)
