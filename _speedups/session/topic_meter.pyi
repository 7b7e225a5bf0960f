from .subscriber import Subscriber
from .turn import Turn

class TopicMeter(Subscriber):
    received: int
    received_bytes: int
    sent: int
    sent_bytes: int
    def __init__(self, turn: Turn) -> None: ...
