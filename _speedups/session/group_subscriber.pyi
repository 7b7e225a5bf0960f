from .session import Session
from .shared_subscription import SharedSubscription

class GroupSubscriber(SharedSubscription):
    session: Session
    @property
    def given_now(self) -> int: ...
    @property
    def is_connected(self) -> bool: ...

def has_given(session: Session) -> bool: ...
