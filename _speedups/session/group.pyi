from .group_settings import GroupSettings
from .group_store import GroupStore
from .turn import Turn

class Group(GroupStore):
    topic_filter: bytes
    given: int
    returned: int
    def __init__(self, turn: Turn, number: int, name: bytes, topic_filter: bytes) -> None: ...
    def configure(self, settings: GroupSettings | None) -> None: ...
