from .group_queue import GroupQueue
from .membership import Membership
from .session import Session

class Member(Membership):
    group: GroupMembers | None
    session: Session
    @property
    def given_now(self) -> int: ...
    @property
    def is_connected(self) -> bool: ...

class GroupMembers(GroupQueue):
    members: list[Member]
    kept: bool
    @property
    def is_attended(self) -> bool: ...
    @property
    def qos(self) -> int: ...

def give_back_sent(session: Session) -> int: ...
def has_given(session: Session) -> bool: ...
