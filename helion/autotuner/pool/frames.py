"""Pickled objects over a socket, each after its length."""

from __future__ import annotations

import pickle
import select
import socket
import struct
import time
from typing import Any

_LENGTH = struct.Struct("!Q")


class Closed(Exception):
    """Error: the other end is closed."""


class Late(Exception):
    """Error: nothing was received in time."""


def send(to: socket.socket, value: Any) -> None:
    """Send an object. Raises ``Closed`` if the other end is closed, and errors of pickling ``value``."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    try:
        to.sendall(_LENGTH.pack(len(data)) + data)
    except OSError as error:
        raise Closed(str(error)) from error


def receive(source: socket.socket, seconds: float | None = None) -> Any:
    """Receive the next object. Raises ``Late`` if it is incomplete after ``seconds``, and ``Closed``."""
    deadline = None if seconds is None else time.monotonic() + seconds
    (length,) = _LENGTH.unpack(_exactly(source, _LENGTH.size, deadline))
    return pickle.loads(_exactly(source, length, deadline))


def _exactly(source: socket.socket, count: int, deadline: float | None) -> bytes:
    parts: list[bytes] = []
    while count:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not select.select([source], [], [], left)[0]:
            raise Late
        try:
            part = source.recv(min(count, 1 << 20))
        except OSError as error:
            raise Closed(str(error)) from error
        if not part:
            raise Closed("end of file")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
