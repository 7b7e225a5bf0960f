from .group_settings import GroupSettings
from .subscriber import Subscriber

class SessionGroup(Subscriber):
    settings: GroupSettings

class SharedSubscription:
    group: SessionGroup | None
    options: int
    identifier: int

class SharedSubscriptions:
    count: int
