"""A store without a file: state ends with the process."""

from collections.abc import Callable, Iterator

from .store import Store


class MemoryStore(Store):
    """Confirms every block at once."""

    durable = False

    def __init__(self) -> None:
        self._confirm: Callable[[int], None] | None = None
        self._position = 1

    def open(self) -> Iterator[bytes]:
        return iter(())

    def start(self, confirm: Callable[[int], None], call: Callable[..., object]) -> None:
        self._confirm = confirm
        self._call = call

    def commit(self, block: bytes) -> None:
        self._position += 1
        if self._confirm is not None:
            self._call(self._confirm, 1)

    @property
    def position(self) -> int:
        return self._position

    @property
    def size(self) -> int:
        return 0

    def forget_before(self, position: int) -> None:
        pass

    def close(self) -> None:
        self._confirm = None

    def describe(self) -> str:
        return "nothing is stored on disk: sessions, queues and retained messages end with this process"
