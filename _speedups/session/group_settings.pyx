"""The settings of a shared subscription: the node's (`[shared]`), or its own if it is declared."""

STRATEGIES = ("rotation", "topic", "publisher")


cdef class GroupSettings:
    """Settings of one group, or of all groups without their own.

    Args:
        declaration: the settings that the group was declared with, as they are stored; empty: it is not declared.
        values: as for `set`.
    """

    def __init__(self, *, bytes declaration=b"", **values):
        self.declaration = declaration
        self.declared = declaration != b""
        self.set(**values)

    def set(self, *, uint32_t window=32, uint64_t max_messages=100000, uint64_t max_bytes=1 << 28,
            bint drop_oldest=False, str strategy="rotation", uint32_t max_expiry=0, bint last_value=False,
            uint32_t max_deliveries=0, bytes dead_letter_topic=b"", bint paused=False):
        """Replace all settings; groups apply them to the messages that follow.

        Args:
            window: messages of QoS 1 and 2 that a subscriber has and has not acknowledged.
            max_messages, max_bytes: of the messages that wait.
            drop_oldest: a full queue drops its oldest message; else the new one.
            strategy: one of STRATEGIES.
            max_expiry: seconds that a message may wait; 0 = as long as its publisher wants.
            last_value: a new message replaces those to the same topic that wait.
            max_deliveries: a message that was given so many times without success is a dead letter; 0 = no limit.
            dead_letter_topic: the topic that dead letters are published to; empty: they are dropped.
            paused: subscribers get no new messages.

        Raises:
            ValueError: there is no such strategy.
        """
        self.strategy_number = STRATEGIES.index(strategy)
        self.window = window
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.drop_oldest = drop_oldest
        self.max_expiry = max_expiry
        self.last_value = last_value
        self.max_deliveries = max_deliveries
        self.dead_letter_topic = dead_letter_topic
        self.paused = paused

    @property
    def strategy(self):
        """One of STRATEGIES."""
        return STRATEGIES[self.strategy_number]
