from .membership import Membership
from .session import Session

class Member(Membership):
    session: Session
    @property
    def given_now(self) -> int: ...
    @property
    def is_connected(self) -> bool: ...

def has_given(session: Session) -> bool: ...
