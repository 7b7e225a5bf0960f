"""A session as Redis has it: one text with its fields and its short queue.

Nodes change sessions by functions, and `functions/packed_sessions.lua` has the form. Here sessions are read for people
and migrations, and migrations write them.
"""

import struct
from dataclasses import dataclass, field

from ..._speedups.cluster.message_codec import encode_message

MOST_ENTRIES, MOST_BYTES = 8, 1024  # of a short queue; the bytes with the length of each entry
PERSISTENT, GROUPED, AWAITED, LISTED, RARE, LIMITED, RESTING = (1 << bit for bit in range(7))  # flags
NO_MESSAGE = encode_message(b"", b"", 2, False)  # an entry whose message no client needs any more
RARE_BIT = 8 * 24 + 3  # of the text: the flag RARE, as SETBIT counts
_FIELDS = struct.Struct("<ddIIBI")
_HEADER = struct.Struct("<ddBIBH")  # behind the owner
_LENGTH = struct.Struct("<I")
_BYTES = struct.Struct("<d")


@dataclass
class PackedSession:
    """A session.

    Attributes:
        head: queue number of the first entry.
        incarnation: the epoch that began the session; 0: it has ended, and `waits` is kept.
        marks, done: number of entries in `st:`, and of those that are done.
        flags: sum of PERSISTENT and the others.
        owner: id of the node that owns the session; empty: none.
        epoch: of the last claim.
        sent: messages with lower queue numbers may have been sent.
        fights: take-overs that have followed each other at once.
        since: second of the cluster's clock at which the owner came or went.
        level: of the protocol.
        user: name of the user that the session belongs to; empty: it belongs to none.
        interval: Session Expiry Interval in seconds; empty: as the nodes are configured.
        waits: epochs that their nodes have not released yet, `epoch=node,` each.
        entries: of a short queue.
        listed_bytes: of the messages in the list `q:`, if the queue is one.
    """

    incarnation: int
    epoch: int
    head: int = 1
    marks: int = 0
    done: int = 0
    flags: int = PERSISTENT
    owner: bytes = b""
    sent: int = 1
    fights: int = 0
    since: int = 0
    level: int = 4
    user: bytes = b""
    interval: bytes = b""
    waits: bytes = b""
    entries: list[bytes] = field(default_factory=list)
    listed_bytes: int = 0

    @property
    def persistent(self) -> bool:
        """Whether the session outlives its connection."""
        return bool(self.flags & PERSISTENT)

    @property
    def listed(self) -> bool:
        """Whether the queue is the list `q:`; else it is in `entries`."""
        return bool(self.flags & LISTED)

    @property
    def queued_bytes(self) -> int:
        """Bytes of the messages in the queue."""
        return self.listed_bytes if self.listed else size_of(self.entries)

    @classmethod
    def decode(cls, text: bytes) -> "PackedSession":
        """Read the text.

        Raises:
            ValueError: it is damaged.
        """
        try:
            head, incarnation, marks, done, flags, length = _FIELDS.unpack_from(text)
            header, queue = text[_FIELDS.size : _FIELDS.size + length], text[_FIELDS.size + length :]
            owner, header = header[1 : 1 + header[0]], header[1 + header[0] :]
            epoch, sent, fights, since, level, size = _HEADER.unpack_from(header)
            user, header = header[_HEADER.size : _HEADER.size + size], header[_HEADER.size + size :]
            interval, waits = header[1 : 1 + header[0]], header[5 + header[0] :]
            listed_bytes = int(_BYTES.unpack(queue)[0]) if flags & LISTED else 0
            entries = [] if flags & LISTED else entries_of(queue)
        except (struct.error, IndexError) as error:
            raise ValueError(f"a session is damaged: {error}") from error
        return cls(
            int(incarnation),
            int(epoch),
            int(head),
            marks,
            done,
            flags,
            owner,
            int(sent),
            fights,
            since,
            level,
            user,
            interval,
            waits,
            entries,
            listed_bytes,
        )

    def encode(self) -> bytes:
        """The text."""
        header = b"%c%b%b%b%c%b%b%b" % (
            len(self.owner),
            self.owner,
            _HEADER.pack(self.epoch, self.sent, min(self.fights, 255), self.since, self.level, len(self.user)),
            self.user,
            len(self.interval),
            self.interval,
            _LENGTH.pack(len(self.waits)),
            self.waits,
        )
        fields = _FIELDS.pack(self.head, self.incarnation, self.marks, self.done, self.flags, len(header))
        queue = _BYTES.pack(self.listed_bytes) if self.listed else b"".join(map(_text_of, self.entries))
        return b"".join((fields, header, queue))


def is_short(entries: list[bytes]) -> bool:
    """Whether the text of the session has room for these entries."""
    return len(entries) <= MOST_ENTRIES and size_of(entries) + 4 * len(entries) <= MOST_BYTES


def size_of(entries: list[bytes]) -> int:
    """The bytes of the messages of entries."""
    return sum(len(entry) for entry in entries if entry != NO_MESSAGE)


def _text_of(entry: bytes) -> bytes:
    text = b"" if entry == NO_MESSAGE else entry
    return _LENGTH.pack(len(text)) + text


def entries_of(queue: bytes) -> list[bytes]:
    """The entries of the text of a short queue."""
    found, at = [], 0
    while at < len(queue):
        (size,) = _LENGTH.unpack_from(queue, at)
        found.append(queue[at + 4 : at + 4 + size] if size else NO_MESSAGE)
        at += 4 + size
    return found
