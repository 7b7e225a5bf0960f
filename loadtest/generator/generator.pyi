from typing import Final

CONNECTING: Final[int]
PUBLISHING: Final[int]
DRAINING: Final[int]
HOLDING: Final[int]
CYCLING: Final[int]
HOPPING: Final[int]

class Generator:
    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int,
        shape: str = "pairs",
        publishers: int = 0,
        subscribers: int = 0,
        topics: int = 1000000,
        filters: int = 50,
        qos: int = 0,
        payload: int = 64,
        batch: int = 1,
        window: int = 20,
        backlog: int = 20000,
        rate: float = 0.0,
        count: int = 0,
        clean_session: bool = True,
        idlers: int = 0,
        subscribe: bool = False,
        cyclers: int = 0,
        parallel: int = 100,
        keep_alive: int = 60,
        client_prefix: str = "load",
        run_id: int = 0,
        publish_host: str = "",
        publish_port: int = 0,
        hoppers: int = 0,
        topic_prefix: str = "",
        transport: str = "mqtt",
        path: str = "/mqtt",
        username: str = "",
        password: str = "",
    ) -> None: ...
    def run(self, phase: int, seconds: float) -> bool: ...
    def figures(self) -> dict[str, int]: ...
    def first_error(self) -> str: ...
    def forget_latencies(self) -> None: ...
    def latencies(self) -> dict[float, int]: ...
    def disconnect(self) -> None: ...
