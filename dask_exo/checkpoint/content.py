"""A value as bytes whose digest is known, and back.

Pickles of protocol 5, with the buffers of frames and arrays beside them, not inside: nothing is
copied to be written. Arrow would not do: it does not have all of pandas' types, and a checkpoint
must give back exactly what it was given. So a digest is compared before anything is unpickled.
"""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import cloudpickle

from dask_exo.errors import CheckpointError

Bytes = bytes | memoryview

_COUNT = struct.Struct("<Q")


def dumps(value: Any) -> list[Bytes]:
    """Make bytes of a value: pieces that belong one behind the other."""
    buffers: list[pickle.PickleBuffer] = []
    code: bytes = cloudpickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(code), *(len(one) for one in raw)]
    head = b"".join(map(_COUNT.pack, [len(sizes), *sizes]))
    return [head, code, *raw]


def digest(pieces: Sequence[Bytes]) -> str:
    """The SHA-256 of some pieces, one behind the other."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def loads(data: bytes | bytearray, expected: str, where: str) -> Any:
    """Make the value of bytes again, if they are what has been written.

    Raises
    ------
    CheckpointError
        They have another digest; nothing has been unpickled then.
    """
    view = memoryview(data)
    if digest([view]) != expected:
        raise CheckpointError(
            f"the checkpoint {where!r} is damaged: its bytes do not have the digest in its name. "
            f"Delete the file, and run again: what was in it is made anew"
        )
    (count,) = _COUNT.unpack_from(data)
    sizes = [_COUNT.unpack_from(data, _COUNT.size * (1 + i))[0] for i in range(count)]
    start, pieces = _COUNT.size * (1 + count), []
    for size in sizes:
        pieces.append(view[start : start + size])
        start += size
    return pickle.loads(pieces[0], buffers=pieces[1:])  # noqa: S301  its digest is the one written
