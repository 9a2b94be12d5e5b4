"""A subscription to the KV events of an engine, by ZeroMQ."""

from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final, Self

from hybrid_blocks.errors import InvalidArgumentError
from hybrid_blocks.trace.kv_events.follow import Message

_END: Final = b"\xff" * 8
ANSWERS_WITHIN_S: Final = 5.0
_LARGEST_MESSAGE: Final = 1 << 28


class Subscriber:
    """Reads an engine's messages, and asks again for those that it has kept."""

    def __init__(self, address: str, replay_address: str | None, topic: str = "") -> None:
        """Connect; the engine may come later.

        Raises:
            InvalidArgumentError: pyzmq is not installed, or no such address.

        """
        try:
            import zmq  # noqa: PLC0415 - optional
        except ImportError:
            raise InvalidArgumentError(
                "record needs pyzmq: pip install 'hybrid-blocks[record]'"
            ) from None
        self.address = address
        self._zmq: Any = zmq
        self._context: Any = zmq.Context()
        self._replay_address = replay_address
        self._replay: Any = None
        self._has_met = False
        try:
            self._socket: Any = self._context.socket(zmq.SUB)
            self._monitor: Any = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED)
            self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST_MESSAGE)
            self._socket.setsockopt(zmq.RCVHWM, 0)
            self._socket.subscribe(topic)
            self._connect(self._socket, address)
            if replay_address is not None:
                self._replay = self._new_replay(replay_address)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Leave the engine."""
        self._context.destroy(linger=0)

    @property
    def has_met(self) -> bool:
        """Whether a publisher has answered so far."""
        while not self._has_met and self._monitor.poll(0):
            self._has_met = bool(self._monitor.recv_multipart())
        return self._has_met

    def wait(self, seconds: float) -> Message | None:
        """Return the next message, None if none comes within ``seconds``."""
        if not self._socket.poll(round(seconds * 1000)):
            return None
        return _message(self._socket.recv_multipart())

    def again(self, number: int) -> Iterator[Message]:
        """Yield the messages from ``number`` on that the engine has kept.

        They end where it does not answer.
        """
        if self._replay_address is None:
            return
        self._replay.send_multipart((b"", number.to_bytes(8, "big")))
        while self._replay.poll(round(ANSWERS_WITHIN_S * 1000)):
            frames = self._replay.recv_multipart()
            if frames[-2:-1] == [_END]:
                return
            if (found := _message(frames)) is not None:
                yield found
        # What comes late would be read as the answer to the next question.
        self._replay.close(linger=0)
        self._replay = self._new_replay(self._replay_address)

    def _new_replay(self, address: str) -> Any:
        socket = self._context.socket(self._zmq.DEALER)
        socket.setsockopt(self._zmq.MAXMSGSIZE, _LARGEST_MESSAGE)
        socket.setsockopt(self._zmq.RCVHWM, 0)
        self._connect(socket, address)
        return socket

    def _connect(self, socket: Any, address: str) -> None:
        try:
            socket.connect(address)
        except self._zmq.ZMQError as error:
            raise InvalidArgumentError(
                f"{address}: {error}; write tcp://HOST:PORT, the endpoint of --kv-events-config"
            ) from None


def _message(frames: list[bytes]) -> Message | None:
    """Number and payload are the last two of two to four parts; None if that is no message."""
    if len(frames) < 2 or len(frames[-2]) != 8:
        return None
    return int.from_bytes(frames[-2], "big"), frames[-1]
