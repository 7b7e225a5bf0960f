from .group_settings import GroupSettings
from .subscriber import Subscriber

class SessionGroup(Subscriber):
    settings: GroupSettings

class Membership:
    group: SessionGroup | None
    options: int
    identifier: int

class Memberships:
    count: int
