"""Serialize values with a digest of their bytes, and deserialize them.

The format is pickle protocol 5 with the buffers of frames and arrays out of band, so that writing
copies nothing. Arrow does not have all of pandas' types, and a checkpoint must restore exactly the
value that it stores. A digest is compared before anything is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import struct
from collections.abc import Sequence
from typing import Any

import cloudpickle

from dask_exo.errors import CheckpointError

Bytes = bytes | memoryview

_COUNT = struct.Struct("<Q")


def dumps(value: Any) -> list[Bytes]:
    """Return the bytes of a value, as buffers to write one after another.

    Raises
    ------
    pickle.PicklingError
        The value has instances of a class that only this program has.
    """
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    code = file.getbuffer()
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(code), *(len(one) for one in raw)]
    head = b"".join(map(_COUNT.pack, [len(sizes), *sizes]))
    return [head, code, *raw]


class _Pickler(cloudpickle.Pickler):
    """Refuses to pickle classes by value: the next program would get other classes."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and obj.__module__ != "builtins":
            name = f"{obj.__module__}.{obj.__qualname__}"
            raise pickle.PicklingError(
                f"it has instances of {name}, which another program does not have: define this "
                f"class in a module that can be imported"
            )
        return reduced


def digest(pieces: Sequence[Bytes]) -> str:
    """Return the SHA-256 digest of some buffers, one after another."""
    found = hashlib.sha256()
    for piece in pieces:
        found.update(piece)
    return found.hexdigest()


def loads(data: bytes | bytearray, expected: str, where: str) -> Any:
    """Deserialize a value after its bytes passed the check of their digest.

    Raises
    ------
    CheckpointError
        The digest differs; nothing has been unpickled.
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
