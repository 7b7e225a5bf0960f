"""Kinds of sessions in a cluster: values of `Session.kind`, as in `_speedups/session/session.pxd`."""

LOCAL = 0  # clean: this node alone has it
SHARED = 1  # persistent: its queue is in Redis, and at the node of its client
