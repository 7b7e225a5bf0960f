from _speedups.session.group_settings import GroupSettings
from _speedups.session.group_store import GroupStore
from _speedups.session.turn import Turn

class Group(GroupStore):
    topic_filter: bytes
    given: int
    returned: int
    def __init__(self, turn: Turn, number: int, name: bytes, topic_filter: bytes) -> None: ...
    def configure(self, settings: GroupSettings | None) -> None: ...
