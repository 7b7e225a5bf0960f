"""The functions of the library in Redis, and the messages between nodes. Nodes, Lua and CALLS.md agree by these tables.

The first argument of each function is the prefix of all keys. A function `of_node` has the id of the calling node
next: a function that changes state refuses a node that is no member. Tests compare the names and flags with the Lua
files, and check calls and replies. deploy/docs/internals/CALLS.md is printed from this table.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .kinds import (
    FLAG,
    NUMBER,
    OPTIONAL,
    SIGNED,
    TEXT,
    TEXT_APART,
    Fields,
    Kind,
    ListOf,
    OneOf,
    Outcomes,
    Packed,
    Rest,
    Turns,
)

FREES = "allow-oom"  # frees memory, or has to work without: Redis runs it also when it has no memory left
READS = "no-writes"
DONE: Mapping[str, Mapping[str, Kind]] = {"ok": {}}
GONE: Mapping[str, Kind] = {}  # the fields of the outcome `gone`: the calling node is no member
DESCRIPTION = Packed(Turns({"field": TEXT, "value": TEXT}))  # of a node
PIECE: Mapping[str, Kind] = {"cursor": TEXT, "most": NUMBER}  # of a scan, which begins and ends with 0

# Messages of groups that Redis hands out.
ASSIGNMENTS = Turns({"group": TEXT, "place": NUMBER, "message": TEXT})
TOTALS = Turns({"group": TEXT, "assignments_so_far": NUMBER})
GIVEN = ListOf(
    Fields(
        {
            "client_id": TEXT,
            "first": NUMBER,
            "group": TEXT,
            "epoch": NUMBER,
            "given_so_far": NUMBER,
            "entries": Rest(TEXT_APART),
        }
    )
)
DAMAGED = Turns({"owner": OneOf(("client", "group", "node", "common")), "name": TEXT, "key": TEXT, "reason": TEXT})
HANDED_OUT: Mapping[str, Kind] = {"assignments": ASSIGNMENTS, "totals": TOTALS, "given": GIVEN, "damaged": DAMAGED}
WILLS = Turns({"epoch": NUMBER, "will": TEXT})

# The outcomes of a claim.
CLAIMED: Mapping[str, Mapping[str, Kind]] = {
    "ok": {
        "epoch": NUMBER,
        "present": FLAG,
        "incarnation": NUMBER,
        "waits": Turns({"epoch": NUMBER, "node": TEXT}),
        "fights": NUMBER,
        "old_will": TEXT,
        "will_epoch": NUMBER,
        "stored": Turns({"head": NUMBER, "sent": NUMBER, "queue": TEXT}),
    },
    "full": {},
    "denied": {},
    "taken": {},
    "damaged": {"key": TEXT, "reason": TEXT},
}

# The records of a change, by their kinds.
CHANGES: Mapping[str, Mapping[str, Kind]] = {
    "subscribed": {
        "client_id": TEXT,
        "incarnation": NUMBER,
        "filter": TEXT,
        "options": NUMBER,
        "identifier": NUMBER,
        "elsewhere": Rest(FLAG),
    },
    "unsubscribed": {"client_id": TEXT, "incarnation": NUMBER, "filter": TEXT, "elsewhere": Rest(FLAG)},
    "ended": {"client_id": TEXT, "incarnation": NUMBER},
    "route": {
        "filter": TEXT,
        "qos": NUMBER,
        "in_queues": FLAG,
        "only_persistent": FLAG,
        "subscribers": NUMBER,
        "elsewhere": Rest(FLAG),
    },
    "unroute": {"filter": TEXT, "elsewhere": Rest(FLAG)},
    "retained": {"topic": TEXT, "message": TEXT},
    "outdated": {"topic": TEXT},
    "ready": {"node": TEXT},
    "left": {"node": TEXT},
    "group": {"group": TEXT, "settings": TEXT},
    "mark": {"number": NUMBER},
}
# A node also reports topic names whose retained messages have expired. No other node gets such a record.
# Nor does one get the members of a group that another shard has as sessions, or as nodes (`node`, else empty).
_MEMBER = {"group": TEXT, "subscriber": TEXT, "node": TEXT}
RECORDS: Mapping[str, Mapping[str, Kind]] = {
    **CHANGES,
    "expired": {"topic": TEXT},
    "joined": _MEMBER,
    "parted": _MEMBER,
}

BLOCK = Fields(
    {
        "pushes": ListOf(Fields({"client_id": TEXT, "incarnation": NUMBER, "messages": Rest(NUMBER)})),
        "batch_header": TEXT,
        "targets": ListOf(Fields({"node": TEXT, "packets": TEXT})),
        "changes": Packed(ListOf(Outcomes(RECORDS)), or_nothing=True),
        "awaiting": ListOf(
            Fields(
                {
                    "client_id": TEXT,
                    "incarnation": NUMBER,
                    "packet_id": NUMBER,
                    "message": NUMBER,
                    "progress": NUMBER,
                    "number": Rest(TEXT),
                }
            )
        ),
        "released": ListOf(Fields({"client_id": TEXT, "incarnation": NUMBER, "packet_id": NUMBER})),
        "wills": Turns({"step": OneOf(("settled", "progress", "dropped")), "epoch": NUMBER, "progress": NUMBER}),
        "releases": ListOf(
            Fields(
                {
                    "client_id": TEXT,
                    "epoch": NUMBER,
                    "sent": OPTIONAL,
                    "interval": OPTIONAL,
                    "will_delay": OPTIONAL,
                    "overtaken": FLAG,
                }
            )
        ),
        "group_limits": Fields({"messages": NUMBER, "bytes": NUMBER, "drop_oldest": FLAG}),
        "shares": Turns({"group": TEXT, "messages": ListOf(NUMBER)}),
        "moves": Turns(
            {
                "step": OneOf(("given", "back", "put", "failed", "dead", "refused", "moved", "returned")),
                "group": TEXT,
                "place": NUMBER,
                "text": TEXT,
                "number": NUMBER,
                "code": NUMBER,
            }
        ),
        "closed_keys": Turns({"group": TEXT, "key": TEXT, "last_assignment": NUMBER}),
        "checked_keys": Turns({"group": TEXT, "key": TEXT, "hold": NUMBER}),
        "delayed": Turns({"message": NUMBER, "seconds": NUMBER, "publisher": TEXT}),
        "tenants": Turns({"tenant": TEXT, "most_bytes": NUMBER}),
        "numbered": Turns(
            {
                "number": TEXT,
                "part": Fields(
                    {
                        "pushes": ListOf(NUMBER),
                        "shares": Turns({"group": TEXT, "messages": ListOf(NUMBER)}),
                        "delayed": Turns({"message": NUMBER, "seconds": NUMBER, "publisher": TEXT}),
                        "changes": ListOf(NUMBER),
                    }
                ),
            }
        ),
        "forgotten": ListOf(TEXT),
    }
)
ACKS = Fields(
    {
        "in_order": Turns(
            {"client_id": TEXT, "incarnation": NUMBER, "first": NUMBER, "count": NUMBER, "bytes": OPTIONAL}
        ),
        "others": ListOf(
            Fields(
                {
                    "client_id": TEXT,
                    "incarnation": NUMBER,
                    "done": ListOf(NUMBER),
                    "received": Turns({"number": NUMBER, "bytes": NUMBER}),
                    "bytes": OPTIONAL,
                }
            )
        ),
    }
)
SETTLED = Fields(
    {
        "ended": Turns({"group": TEXT, "place": NUMBER}),
        "rooms": Turns(
            {"group": TEXT, "room": NUMBER, "weight": NUMBER, "assignments_so_far": NUMBER, "largest_packet": NUMBER}
        ),
        "idle_keys": Turns({"group": TEXT, "key": TEXT, "last_assignment": NUMBER}),
        "subscribers": ListOf(
            Fields(
                {
                    "group": TEXT,
                    "client_id": TEXT,
                    "epoch": NUMBER,
                    "limit": NUMBER,
                    "by_length": FLAG,
                    "qos": NUMBER,
                    "retain_as_published": FLAG,
                    "identifiers": TEXT,
                }
            )
        ),
    }
)

# Messages of groups in queues of other shards. `digest`: of topic name, properties and payload.
OFFERED = ListOf(Fields({"group": TEXT, "place": NUMBER, "client_id": TEXT, "digest": TEXT}))

# Messages to nodes, by their kinds; batches of packets aside.
NOTIFICATIONS: Mapping[str, Mapping[str, Kind]] = {
    "changes": {"number": NUMBER, "origin": TEXT, "records": Packed(ListOf(Outcomes(CHANGES)))},
    "pushed": {
        "messages": ListOf(TEXT_APART),
        "queues": ListOf(Fields({"client_id": TEXT, "first": NUMBER, "messages": Rest(NUMBER)})),
    },
    "assigned": {"assignments": ASSIGNMENTS, "totals": TOTALS},
    "given": {"given": GIVEN},
    "key_free": {"group": TEXT, "key": TEXT, "hold": NUMBER},
    "key_elsewhere": {"group": TEXT, "key": TEXT, "hold": NUMBER, "client_id": TEXT},
    "key_closed": {"group": TEXT, "key": TEXT, "last_assignment": NUMBER},
    "taken": {"client_id": TEXT, "epoch": NUMBER},
    "released": {"client_id": TEXT, "epoch": NUMBER},
    "adopt": {"epoch": NUMBER, "will": TEXT},
    "kick": {"client_id": TEXT},
    "purge": {"client_id": TEXT},
    "later": {"wait": SIGNED},
    "clock": {"time": NUMBER},
    "result": {"topic": TEXT, "payload": TEXT},
    "access": {"kind": TEXT, "documents": Turns({"name": TEXT, "document": TEXT})},
    "applied": {"node": TEXT, "change": NUMBER},
    "all_applied": {"change": NUMBER},
    "back": {"node": TEXT, "change": NUMBER},
    "credit": {"node": TEXT, "bytes": NUMBER},
    "ask": {"node": TEXT, "number": NUMBER, "method": TEXT, "arguments": TEXT},
    "answer": {"node": TEXT, "number": NUMBER, "reply": TEXT},
}


@dataclass(frozen=True)
class Call:
    """A function of the library.

    Attributes:
        meaning: one or two sentences.
        arguments: after the prefix, and after the node if it is `of_node`; by name.
        reply: one form, whatever is in it.
        flags: of Redis.
        rest: arguments that follow in any number; None: none do.
    """

    meaning: str
    arguments: Mapping[str, Kind]
    reply: Kind
    of_node: bool = True
    flags: tuple[str, ...] = ()
    rest: Kind | None = None

    def problem(self, arguments: list[bytes]) -> str:
        """Why the function can't be called with these arguments, the prefix first; empty: it can."""
        fields: dict[str, Kind] = {"prefix": TEXT, **({"node": TEXT} if self.of_node else {}), **self.arguments}
        if self.rest is not None:
            fields["rest"] = Rest(self.rest)
        return Fields(fields).problem(arguments)


def _reading(meaning: str, arguments: Mapping[str, Kind], reply: Kind, *, of_node: bool = False) -> Call:
    return Call(meaning, arguments, reply, of_node, (READS, FREES))


CALLS: Mapping[str, Call] = {
    # ---- membership ----
    "join": Call(
        "The node joins. A new cluster gets its layout. `shards`: the number of shards, and the places of those that "
        "this server has, as the configuration says; empty: there is one. The first has the prefix `base`. `layout`, "
        "`shards`: the cluster has others.",
        {"layout": NUMBER, "description": DESCRIPTION, "base": TEXT, "shards": TEXT},
        Outcomes(
            {
                "ok": {"change": NUMBER, "clock": NUMBER, "off": NUMBER},
                "layout": {"layout": TEXT},
                "shards": {"shards": TEXT},
            }
        ),
    ),
    "ready": Call(
        "The node has read the state: from now on others wait for it. Replies with all nodes.",
        {},
        Outcomes(
            {"ok": {"change": NUMBER, "nodes": Turns({"node": TEXT, "seq": NUMBER, "state": TEXT})}, "gone": GONE}
        ),
    ),
    "beat": Call(
        "A heartbeat. `elapsed`: milliseconds since the last one, by the clock of the node. `due`: sessions or delayed "
        "wills are.",
        {"elapsed": NUMBER, "description": DESCRIPTION},
        Outcomes(
            {
                "ok": {
                    "change": NUMBER,
                    "clock": NUMBER,
                    "due": FLAG,
                    "heartbeats": Turns({"node": TEXT, "count": TEXT}),
                },
                "gone": GONE,
            }
        ),
        flags=(FREES,),
    ),
    "confirm": Call(
        "The node lives, and asks whether it is a member. It need not be up to date.",
        {},
        Outcomes({"ok": {}, "gone": GONE}),
        flags=(FREES,),
    ),
    "resume": Call(
        "The node has a new link: it lives, but is not up to date. It brings back the number of the process of Redis "
        "that it has compared itself with, 0 = not known, since Redis may have lost the heartbeats with it. `calls`: "
        "claims and acknowledgements that Redis has counted.",
        {"process": NUMBER},
        Outcomes({"ok": {"seq": NUMBER, "change": NUMBER, "calls": NUMBER}, "gone": GONE}),
        flags=(FREES,),
    ),
    "clock": Call(
        "Moves the clock of the cluster forward by the milliseconds since the last heartbeat of the node, and replies "
        "with the clock.",
        {"elapsed": NUMBER},
        NUMBER,
        flags=(FREES,),
    ),
    "queued": Call(
        "The node reports the bytes in its own queues of tenants. Replies with the bytes in all other queues of each.",
        {"reported": Packed(Turns({"tenant": TEXT, "bytes": NUMBER}))},
        Outcomes({"ok": {"elsewhere": ListOf(SIGNED)}, "gone": GONE}),
        flags=(FREES,),
    ),
    "bury": Call(
        "Declares a node dead if it has sent no heartbeat since these, or in any case: then they are empty. The caller "
        "publishes the wills of the reply. `in_doubt`: the node keeps its assignments until `end_doubt`.",
        {"dead": TEXT, "heartbeats": OPTIONAL, "in_doubt": FLAG},
        Outcomes({"ok": {"wills": WILLS}, "lives": {}}),
        flags=(FREES,),
    ),
    "applied": Call(
        "The node has applied all changes up to this one, and waits until all nodes have applied the change `wanted`; "
        "0: it waits for none. It gets a message at the end of a round, which ends when all nodes have applied the "
        "changes that were wanted when it began.",
        {"change": NUMBER, "wanted": NUMBER},
        Outcomes({"ok": {}, "gone": GONE}),
        flags=(FREES,),
    ),
    "leaving": Call(
        "The node closes its clients, and leaves then.",
        {},
        Outcomes({"ok": {}, "gone": GONE}),
        flags=(FREES,),
    ),
    "leave": Call("The node leaves. It has committed all that it has received.", {}, Outcomes(DONE), flags=(FREES,)),
    "tidy": Call(
        "Marks sessions of dead nodes as offline, up to so many. Replies with their number.",
        {"most": NUMBER},
        NUMBER,
        of_node=False,
        flags=(FREES,),
    ),
    # ---- sessions ----
    "claims": Call(
        "The node claims sessions, each for a connection. Each claim has an outcome. `without_redis`: the client was "
        "admitted without Redis. `waits`: earlier connections to wait for; `old_will`: a will to be published first, "
        "of the epoch `will_epoch`; `stored`: the session, if its client can be admitted at once, and all that is "
        "stored of it is a short queue, which is one text here. `full`: there are too many sessions; `denied`: the "
        "session is another user's; `taken`: the client may have connected to another node since it was admitted "
        "without Redis.",
        {
            "max_sessions": NUMBER,
            "claims": Packed(
                ListOf(
                    Fields(
                        {
                            "client_id": TEXT,
                            "persistent": FLAG,
                            "level": NUMBER,
                            "will": TEXT,
                            "user": TEXT,
                            "clean_start": FLAG,
                            "interval": OPTIONAL,
                            "without_redis": FLAG,
                        }
                    )
                )
            ),
        },
        Outcomes({"ok": {"claims": ListOf(Outcomes(CLAIMED))}, "gone": GONE}),
    ),
    "load": _reading(
        "Reads a session, from this queue number on. `sent`: messages with lower numbers may have been sent; `tail`: "
        "the next number of the queue. States and awaited messages are empty while the queue has more entries. "
        "`held_will`: epoch of a will that waits for the admission of the client, 0 = none.",
        {"client_id": TEXT, "first": NUMBER, "most": NUMBER},
        Fields(
            {
                "head": NUMBER,
                "sent": NUMBER,
                "first": NUMBER,
                "entries": ListOf(TEXT),
                "tail": NUMBER,
                "states": Turns({"number": NUMBER, "state": OneOf(("d", "r"))}),
                "awaited": Turns({"packet_id": NUMBER, "message": TEXT}),
                "held_will": NUMBER,
            }
        ),
    ),
    "behind": _reading(
        "Replies with the client ids whose queues have the number that the node expects next.",
        {"ends": Packed(Turns({"client_id": TEXT, "next": NUMBER}))},
        ListOf(TEXT),
        of_node=True,
    ),
    "lost": _reading(
        "Replies with the client ids whose queues end before the number that the node expects next, or ended so when "
        "this process of Redis began, if the node has not compared itself with that: Redis has lost messages.",
        {"ends": Packed(Turns({"client_id": TEXT, "incarnation": NUMBER, "next": NUMBER}))},
        ListOf(TEXT),
        of_node=True,
    ),
    "restore": Call(
        "Gives back messages of QoS 2 that Redis has lost, that are sent and not completed. An empty entry: PUBREC is "
        "received. Replies with the number of messages that Redis has taken.",
        {
            "sessions": Packed(
                ListOf(
                    Fields(
                        {
                            "client_id": TEXT,
                            "incarnation": NUMBER,
                            "entries": ListOf(Fields({"number": NUMBER, "entry": TEXT})),
                        }
                    )
                )
            )
        },
        NUMBER,
        flags=(FREES,),
    ),
    "owned": _reading(
        "A piece of the node's claims. `taken`: another connection has claimed the session since.",
        PIECE,
        Fields({"cursor": TEXT, "claims": Turns({"client_id": TEXT, "epoch": NUMBER, "taken": FLAG})}),
        of_node=True,
    ),
    "kick": Call(
        "Sends the client's node the request to close its connection.",
        {"client_id": TEXT},
        Outcomes({"sent": {"node": TEXT}, "unknown": {}, "offline": {}}),
        of_node=False,
    ),
    "purge": Call(
        "Ends a session. The session of a connected client ends with its connection, which its node is to close.",
        {"client_id": TEXT},
        Outcomes({"sent": {"node": TEXT}, "unknown": {}, "purged": {}}),
        of_node=False,
    ),
    "limit": Call(
        "Sets the limits of a session's queue: messages, bytes and 1 = drop the oldest, between spaces; an empty text: "
        "as configured.",
        {"client_id": TEXT, "limits": TEXT},
        Outcomes(DONE),
    ),
    "expire": Call(
        "Ends persistent sessions whose clients have been offline for so many seconds. Replies with their number.",
        {"seconds": NUMBER, "most": NUMBER},
        NUMBER,
        flags=(FREES,),
    ),
    "due": Call(
        "Ends sessions whose Session Expiry Interval is over, and hands the caller the delayed wills that are due: the "
        "commit that publishes a will settles it.",
        {"most": NUMBER},
        Fields({"ended": NUMBER, "wills": WILLS}),
        flags=(FREES,),
    ),
    # ---- the state, in pieces ----
    "sessions": _reading(
        "A piece of the sessions with subscriptions.",
        PIECE,
        Fields(
            {
                "cursor": TEXT,
                "sessions": Turns(
                    {
                        "client_id": TEXT,
                        "incarnation": NUMBER,
                        "subscriptions": Turns({"filter": TEXT, "options": TEXT}),
                    }
                ),
            }
        ),
    ),
    "retained": _reading(
        "A piece of the retained messages. `values` replies with a message that is empty here.",
        PIECE,
        Fields({"cursor": TEXT, "messages": Turns({"topic": TEXT, "message": TEXT})}),
    ),
    "values": _reading(
        "The retained messages of these topic names, empty = there is none. If they are large, only the first of them.",
        {"topics": Packed(ListOf(TEXT))},
        ListOf(TEXT),
    ),
    "logs": _reading(
        "Reads the logs of nodes, each from this seq on, as one log in the order of the commits. `following`: the seq "
        "from which to go on, for each; `batches`: for the calling node, without their headers.",
        {"positions": Packed(Turns({"owner": TEXT, "first": NUMBER}))},
        Fields({"more": FLAG, "following": ListOf(NUMBER), "batches": ListOf(TEXT)}),
        of_node=True,
    ),
    # ---- commits ----
    "commit": Call(
        "Applies a block, if its number follows the last one. The messages are arguments, and the block names a "
        "message by its place among all arguments. `log_entry`: for the message log, with the id `entry_id` and "
        "the oldest entry to keep; `batch`: for other nodes; `acks`, `settled`: as in `acks`, applied first. They may "
        "be empty. `numbers`: for each push the first queue number, 0 = the client is elsewhere, and the number of "
        "messages that were put there. `again`: this commit was applied; `gap`: the commit before it was not.",
        {
            "seq": NUMBER,
            "block": Packed(BLOCK),
            "max_messages": NUMBER,
            "max_bytes": NUMBER,
            "drop_oldest": FLAG,
            "oldest_batch": TEXT,
            "entry_id": TEXT,
            "log_entry": TEXT,
            "oldest_entry": TEXT,
            "batch": TEXT,
            "acks": Packed(ACKS, or_nothing=True),
            "settled": Packed(SETTLED, or_nothing=True),
        },
        Outcomes(
            {
                "ok": {
                    "change": NUMBER,
                    "dropped": NUMBER,
                    "expired": NUMBER,
                    "numbers": Turns({"first": NUMBER, "count": NUMBER}),
                    "full": Turns({"client_id": TEXT, "dropped": NUMBER}),
                    "known": ListOf(TEXT),
                    **HANDED_OUT,
                },
                "gone": GONE,
                "again": {},
                "gap": {"seq": NUMBER},
            }
        ),
        rest=TEXT,
    ),
    "acks": Call(
        "Applies acknowledgements of clients, and the settled messages of groups, without a commit. Both free memory. "
        "`bytes`: of the entries that are done, if the node knows them. A repetition has no effect.",
        {"acks": Packed(ACKS), "settled": Packed(SETTLED, or_nothing=True)},
        Outcomes({"ok": HANDED_OUT, "gone": GONE}),
        flags=(FREES,),
    ),
    "logged": Call(
        "Adds an entry to the message log, for a turn without a commit.",
        {"entry_id": TEXT, "log_entry": TEXT, "oldest_entry": TEXT},
        Outcomes({"ok": {}, "gone": GONE, "again": {}, "gap": {}}),
    ),
    "log_from": Call(
        "If Redis has lost a part of the node's message log, the log continues after a gap of these bytes.",
        {"bytes": NUMBER},
        Outcomes(DONE),
        flags=(FREES,),
    ),
    "tidy_logs": Call(
        "Deletes and trims the logs of nodes that have left.", {}, Outcomes(DONE), of_node=False, flags=(FREES,)
    ),
    "log_readers": Call(
        "The logs with entries, and the readers of logs: `flockmq lake`, `flockmq connect`, Spark. `record`: JSON.",
        {},
        Fields(
            {
                "logs": ListOf(Fields({"node": TEXT, "bytes_so_far": NUMBER, "bytes": NUMBER})),
                "readers": ListOf(Fields({"reader": TEXT, "record": TEXT})),
            }
        ),
        of_node=False,
        flags=(READS,),
    ),
    "result": Call(
        "Sets a result of an analytics job, or removes it: the payload is empty. All nodes publish it.",
        {"topic": TEXT, "payload": TEXT},
        Outcomes(DONE),
        of_node=False,
    ),
    # ---- numbers of publications, with several shards ----
    "orphans": Call(
        "Some numbers of publications that nodes had given which are dead.",
        {"most": NUMBER},
        ListOf(TEXT),
        of_node=False,
        flags=(READS,),
    ),
    "needed": Call(
        "Whether a node may repeat these publications: their records, which end with them, are in this shard.",
        {"numbers": Packed(ListOf(TEXT))},
        ListOf(FLAG),
        of_node=False,
        flags=(READS,),
    ),
    "forget": Call(
        "No node will give these publications any more.",
        {"numbers": Packed(ListOf(TEXT))},
        Outcomes(DONE),
        of_node=False,
        flags=(FREES,),
    ),
    # ---- messages of groups for sessions of other shards ----
    "has_key": Call(
        "Whether a session has messages of this key of a group in its queue, or some are on their way back.",
        {"client_id": TEXT, "group": TEXT, "key": TEXT},
        FLAG,
        of_node=False,
        flags=(READS, FREES),
    ),
    "offered": Call(
        "Whether messages of groups have been put into queues under these numbers.",
        {"numbers": Packed(ListOf(TEXT))},
        ListOf(FLAG),
        of_node=False,
        flags=(READS, FREES),
    ),
    "offered_by": Call(
        "Messages of groups that a dead node has put into queues. It may not have ended their assignments.",
        {"dead": TEXT},
        Outcomes({"ok": {"messages": OFFERED}, "lives": {}}),
        of_node=False,
        flags=(READS, FREES),
    ),
    "in_doubt": Call(
        "Dead nodes that keep their assignments, because some may have ended.",
        {},
        ListOf(TEXT),
        of_node=False,
        flags=(READS, FREES),
    ),
    "end_doubt": Call(
        "The assignments of a dead node end: sessions of other shards have these messages, and the others go back.",
        {
            "dead": TEXT,
            "offered": Packed(OFFERED),
        },
        Outcomes(DONE),
        of_node=False,
        flags=(FREES,),
    ),
    # ---- delayed messages ----
    "later": Call(
        "Hands the caller messages that have been due for so many milliseconds, the earliest first: the commit that "
        "publishes a message settles it. `wait`: milliseconds until the first of the others is due, 2^53 - 1 = "
        "none will be; `count`, `bytes`: of the others.",
        {"most": NUMBER, "late": NUMBER},
        Outcomes({"ok": {"wait": SIGNED, "count": NUMBER, "bytes": NUMBER, "messages": WILLS}, "gone": GONE}),
        flags=(FREES,),
    ),
    "list_later": Call(
        "A piece of the messages that wait: their topic names begin with `begins`, and not with `without`. It follows "
        "the message with this time and id. The reply has the time and id after which to go on, empty = no more.",
        {"begins": TEXT, "without": TEXT, "due": NUMBER, "id": TEXT, "most": NUMBER},
        Fields(
            {
                "due": TEXT,
                "id": TEXT,
                "messages": ListOf(
                    Fields(
                        {
                            "id": TEXT,
                            "wait": SIGNED,
                            "due": TEXT,
                            "publisher": TEXT,
                            "topic": TEXT,
                            "qos": NUMBER,
                            "retain": FLAG,
                            "bytes": NUMBER,
                        }
                    )
                ),
            }
        ),
        of_node=False,
        flags=(READS,),
    ),
    "cancel_later": Call(
        "Drops a message that waits. 0: there is none with this id whose topic name begins so.",
        {"begins": TEXT, "id": TEXT},
        FLAG,
        of_node=False,
    ),
    # ---- transactions ----
    "stage": Call(
        "Keeps a chunk of a part of a transaction. `chunk`: its place in the part, from 0 on. `again`: it is there; "
        "`gap`: an earlier one is not; `committed`: the transaction is, or a later one of this name. The limits are of "
        "delayed messages; `lifetime` of the part, in milliseconds.",
        {
            "name": TEXT,
            "number": NUMBER,
            "part": TEXT,
            "chunk": NUMBER,
            "publisher": TEXT,
            "message": TEXT,
            "lifetime": NUMBER,
            "most": NUMBER,
            "most_bytes": NUMBER,
            "most_of_tenant": NUMBER,
        },
        Outcomes({"ok": {}, "again": {}, "gap": {}, "full": {}, "committed": {}}),
        of_node=False,
    ),
    "commit_transaction": Call(
        "Makes all chunks of the parts due, and drops other parts of this name up to this number. `missing`: a part "
        "has another number of chunks, and nothing has changed.",
        {"name": TEXT, "number": NUMBER, "parts": Packed(Turns({"part": TEXT, "chunks": NUMBER}))},
        Outcomes({"ok": {}, "missing": {}, "committed": {}}),
        of_node=False,
        flags=(FREES,),
    ),
    "expire_staged": Call(
        "Drops parts of transactions whose lifetime is over, ten at most.", {}, TEXT, of_node=False, flags=(FREES,)
    ),
    "staged_parts": Call(
        "The parts that wait for their commit, in the order in which they expire. `expires_in`: milliseconds.",
        {"most": NUMBER},
        ListOf(Fields({"part": TEXT, "chunks": NUMBER, "bytes": NUMBER, "expires_in": SIGNED})),
        of_node=False,
        flags=(READS,),
    ),
    # ---- groups ----
    "declare_group": Call(
        "Declares a group with settings, a JSON object; empty = no more. `change` is 0 if nothing changes.",
        {"group": TEXT, "settings": TEXT},
        Outcomes({"ok": {"change": NUMBER, "dropped": NUMBER, "mark": NUMBER}, "gone": GONE}),
    ),
    "declared_groups": _reading(
        "A piece of the declared groups.",
        PIECE,
        Fields({"cursor": TEXT, "groups": Turns({"group": TEXT, "settings": TEXT})}),
    ),
    "purge_group": Call(
        "Drops the messages that wait in a group. Assigned messages stay. Replies with their number.",
        {"group": TEXT},
        NUMBER,
        of_node=False,
    ),
    "change_access": Call(
        "Changes users or roles, each for itself, unless another document than `before` is there; empty = none. "
        "`made`: 1 for each change that was made, else 0.",
        {"kind": OneOf(("user", "role")), "changes": Packed(Turns({"name": TEXT, "before": TEXT, "after": TEXT}))},
        Outcomes({"ok": {"made": ListOf(NUMBER)}, "gone": GONE}),
        flags=(FREES,),
    ),
    "page_access": _reading(
        "The first users or roles behind a name whose names begin so, in the order of their names.",
        {"kind": OneOf(("user", "role")), "after": TEXT, "beginning": TEXT, "most": NUMBER},
        Fields({"names": ListOf(TEXT), "documents": ListOf(TEXT)}),
    ),
    "waiting": _reading(
        "The messages that wait in each of these groups, and their bytes.",
        {"groups": Packed(ListOf(TEXT))},
        Turns({"messages": NUMBER, "bytes": NUMBER}),
    ),
    "lost_places": _reading(
        "Replies with the groups in which the highest place that the node has had was given to no message, or to none "
        "when this process of Redis began, if the node has not compared itself with that. `missed`: a whole process of "
        "Redis has begun and ended since, so the node can't know. It is the last question of a node that is back.",
        {"places": Packed(Turns({"group": TEXT, "place": NUMBER}))},
        Outcomes({"ok": {"groups": ListOf(TEXT)}, "missed": {}}),
        of_node=True,
    ),
    "assigned": _reading(
        "All assignments of the node.",
        {},
        Fields({"assignments": ASSIGNMENTS, "totals": TOTALS}),
        of_node=True,
    ),
}
