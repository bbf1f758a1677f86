"""Store of checkpoints: a directory or bucket whose file names describe their contents.

A file is ``<path>/<group>/<key>-<bytes>-<sha256>.value``. A group has the values of one collection;
a key is the fingerprint of a task. A file is valid if its size is the one in its name. There is no
manifest besides the listing, so nothing can contradict it.

Contents are pickles with the buffers of frames and arrays out of band, so that writing copies
nothing. Arrow does not have all types of pandas, and a checkpoint must restore exactly the value
that was stored. The digest is compared before anything is unpickled.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import cloudpickle

from dask_exo.checkpoint import atomic_io
from dask_exo.checkpoint.atomic_io import Bytes
from dask_exo.errors import CheckpointError

_NAME = re.compile(r"([0-9a-f]{32})-(\d+)-([0-9a-f]{64})\.value")
_BEGUN = ".begun"  # ends the name of an empty file: a task that can be rolled back has begun


@dataclass(frozen=True, slots=True)
class StoredValue:
    """A stored value: its path, size and digest."""

    path: str
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A stored collection: its number of values, bytes and incomplete files."""

    name: str
    values: int
    nbytes: int
    partial: int


@dataclass(frozen=True)
class CheckpointStore:
    """Store of values by group and key, in a directory or ``s3://bucket/folder``.

    Examples
    --------
    >>> store = CheckpointStore("memory://checkpoints")
    >>> entry = store.write("shuffle-1", 32 * "0", [1, 2])
    >>> store.found("shuffle-1") == {32 * "0": entry}, store.read(entry)
    (True, [1, 2])
    >>> store.remove("shuffle-1")
    >>> store.found("shuffle-1")
    {}
    """

    url: str

    @classmethod
    def open(cls, url: str) -> CheckpointStore:
        """Open a store; create its directory if it is local, and check that it is safe."""
        fs, path = atomic_io.located(url)
        if not atomic_io.is_local(fs):
            return cls(url)
        atomic_io.make_private(path)
        return cls(path)  # absolute: tasks have other working directories

    @classmethod
    def existing(cls, url: str) -> CheckpointStore:
        """Open a store that exists, or raise `CheckpointError`."""
        fs, path = atomic_io.located(url)
        if not fs.exists(path):
            raise CheckpointError(
                f"there is no directory {path!r}: give the path at which a program has "
                f"stored checkpoints, its exo.checkpoint.path"
            )
        return cls(url)

    def found(self, group: str) -> dict[str, StoredValue]:
        """Return the valid values of a group, by key."""
        fs, path = atomic_io.located(self.url)
        folder = f"{path}/{_folder(group)}"
        entries = {}
        for name, size in sorted(atomic_io.sizes(fs, folder).items()):
            match = _NAME.fullmatch(name)
            if match and int(match[2]) == size:
                entries[match[1]] = StoredValue(f"{folder}/{name}", size, match[3])
        return entries

    def write(
        self, group: str, key: str, value: Any, before: StoredValue | None = None
    ) -> StoredValue:
        """Store a value under a key of 32 hexadecimal digits.

        If an earlier program stored the output of the same task (``before``), the value is only
        compared; `CheckpointError` is raised if it differs.
        """
        pieces = dumps(value)
        digest = sha256(pieces)
        if before is not None:
            if digest != before.digest and not _same(self.read(before), value):
                raise CheckpointError(
                    f"a task of {group!r} gives another value than in the program that wrote the "
                    f"checkpoint {before.path!r}: a function before it does not always return the "
                    f"same value for the same input, so old and new partitions do not match. "
                    f"Give its random numbers a seed, or delete the old ones: "
                    f"dask exo checkpoints clean {self.url}"
                )
            return before
        fs, path = atomic_io.located(self.url)
        nbytes = sum(len(piece) for piece in pieces)
        file = f"{path}/{_folder(group)}/{key}-{nbytes}-{digest}.value"
        atomic_io.put(fs, file, pieces)
        return StoredValue(file, nbytes, digest)

    def begin(self, group: str, key: str) -> bool:
        """Record that a task begins; return False if it has begun before."""
        fs, path = atomic_io.located(self.url)
        file = f"{path}/{_folder(group)}/{key}{_BEGUN}"
        fs.invalidate_cache()
        if fs.exists(file):
            return False
        atomic_io.put(fs, file, [b""])
        return True

    def read(self, entry: StoredValue) -> Any:
        """Read a value; raise `CheckpointError` if the file was removed, or is damaged."""
        fs, _ = atomic_io.located(self.url)
        try:
            with fs.open(entry.path, "rb") as file:
                data = bytearray(entry.nbytes)  # writable: frames use its memory
                data = data[: file.readinto(data)]
        except FileNotFoundError as error:
            raise CheckpointError(
                f"the checkpoint {entry.path!r} is gone: {self.url!r} was cleaned since this "
                f"computation began. Compute again: its values are recomputed"
            ) from error
        return loads(data, entry.digest, entry.path)

    def groups(self) -> Iterator[StoredGroup]:
        """Iterate over the stored collections, in order of name."""
        fs, path = atomic_io.located(self.url)
        for name in atomic_io.folders(fs, path):
            entries = self.found(name)
            names = atomic_io.sizes(fs, f"{path}/{name}")
            others = sum(not file.endswith(_BEGUN) for file in names) - len(entries)
            nbytes = sum(entry.nbytes for entry in entries.values())
            yield StoredGroup(name, len(entries), nbytes, others)

    def remove(self, group: str) -> None:
        """Delete the values of a group; other files in its folder stay."""
        fs, path = atomic_io.located(self.url)
        folder = f"{path}/{_folder(group)}"
        for name in atomic_io.sizes(fs, folder):
            if _NAME.fullmatch(name) or re.match(r"\.[0-9a-f]{32}-|[0-9a-f]{32}\.begun$", name):
                fs.rm_file(f"{folder}/{name}")
        if not fs.find(folder) and fs.isdir(folder):
            fs.rmdir(folder)


def _folder(group: str) -> str:
    """Return the name of the folder of a group."""
    return re.sub(r"[^\w-]", "_", group)[:120]


def _same(a: Any, b: Any) -> bool:
    """Return whether values are equal; equal frames may have different pickles."""
    if type(a) is not type(b):
        return False
    if hasattr(a, "equals"):
        return bool(a.equals(b))
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return sha256(dumps(a)) == sha256(dumps(b))


def dumps(value: Any) -> list[Bytes]:
    """Return the bytes of a value, as buffers to write one after another."""
    buffers: list[pickle.PickleBuffer] = []
    file = io.BytesIO()
    _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
    code = file.getbuffer()
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(code), *(len(buffer) for buffer in raw)]
    head = struct.pack(f"<Q{len(sizes)}Q", len(sizes), *sizes)
    return [head, code, *raw]


class _Pickler(cloudpickle.Pickler):
    """Raises for classes that are pickled by value: the next program would get other classes."""

    def reducer_override(self, obj: Any) -> Any:
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and obj.__module__ != "builtins":
            name = f"{obj.__module__}.{obj.__qualname__}"
            raise pickle.PicklingError(
                f"it has instances of {name}, which another program does not have: define this "
                f"class in a module that can be imported"
            )
        return reduced


def sha256(pieces: Sequence[Bytes]) -> str:
    """Return the SHA-256 digest of some buffers, one after another."""
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def loads(data: bytes | bytearray, expected: str, path: str) -> Any:
    """Deserialize a value after the digest of its bytes was checked."""
    view = memoryview(data)
    if sha256([view]) != expected:
        raise CheckpointError(
            f"the checkpoint {path!r} is damaged: its bytes do not have the digest in its name. "
            f"Delete the file, and run again: its values are recomputed"
        )
    (count,) = struct.unpack_from("<Q", data)
    sizes = struct.unpack_from(f"<{count}Q", data, 8)
    pieces = [view[a:b] for a, b in pairwise(accumulate(sizes, initial=8 * (1 + count)))]
    return pickle.loads(pieces[0], buffers=pieces[1:])  # noqa: S301  its digest is the one written
