"""The KV of one path in one safetensors file: ids, fingerprint and checksums in its header, written atomically.

The tensors are split into parts of some hundred tokens, named ``part.name``, so that neither writer nor reader holds all of
them twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from resources.files import open_regular
from runtime.adapters.stacks import namespaced, stack_of
from runtime.backends.stored import Stored, first
from runtime.errors import SnapshotFormatError, SnapshotMismatchError
from runtime.info import ModelInfo
from runtime.kv.packing import entry_of
from runtime.kv.trie import Namespace, Span
from runtime.records import Int32

FORMAT = "elsewise-kv"
VERSION = 1
_RESERVED = 1 << 16  # header bytes in addition to ids and entries
_PER_ENTRY = 256
_MOST_HEADER = 100_000_000  # bytes, the limit of safetensors
_SEAL = "0" * 64
_WHAT = {
    "backend": "backend",
    "architecture": "architecture",
    "layers": "number of layers",
    "kv_bytes_per_token": "shape of keys and values",
    "dtype": "dtype",
    "kv_dtype": "kv_dtype",
}


@dataclass(frozen=True, slots=True)
class SnapshotPart:
    """Tokens ``[start, stop)`` of a path, all under one namespace."""

    start: int
    stop: int
    namespace: Namespace
    arrays: Stored


def facts_of(info: ModelInfo) -> dict[str, str]:
    """The properties that the KV of a model depends on, as texts; the fingerprint is a digest of them and the weights."""
    return {
        "backend": info.backend,
        "architecture": info.architecture,
        "layers": str(info.layers),
        "kv_bytes_per_token": str(info.kv_bytes_per_token),
        "dtype": info.computed_with,
        "kv_dtype": str(info.options.get("kv_dtype", "")),
    }


class SnapshotWriter:
    """Writes a snapshot beside its path and renames it when it is complete. A context manager.

    Attributes:
        nbytes: The size of the file, once it is written.
    """

    def __init__(self, path: Path, ids: Int32, spans: Sequence[Span], info: ModelInfo) -> None:
        self._path, self._info = path, info
        self._ids = ids
        self._stacks = [[len(part), list(stack_of(namespace))] for namespace, part in spans]
        self._entries: dict[str, Any] = {}
        self._sums: list[str] = []
        self._parts: list[list[int]] = []
        self._at = 0
        self.nbytes = 0
        most = len(ids) + 64  # the most parts: at worst one token each
        self._room = _RESERVED + 12 * len(ids) + _PER_ENTRY * 8 * min(most, 4096)

    def __enter__(self) -> Self:
        handle, made = tempfile.mkstemp(prefix=f".{self._path.name[:60]}.", suffix=".part", dir=self._path.parent)
        self._temporary, self._file = Path(made), os.fdopen(handle, "wb")
        self._file.seek(8 + self._room)
        return self

    def add(self, part: SnapshotPart) -> None:
        number, digest = len(self._parts), hashlib.sha256()
        for name in sorted(part.arrays):
            self._entries[f"{number}.{name}"], data = entry_of(part.arrays[name], self._at)
            self._at += data.nbytes
            digest.update(name.encode())
            digest.update(data)
            self._file.write(data)
        self._sums.append(digest.hexdigest())
        self._parts.append([part.start, part.stop])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if error is None:
                header = self._header()
                self._file.seek(0)
                self._file.write(len(header).to_bytes(8, "little") + header)
                self._file.flush()
                os.fsync(self._file.fileno())
                self.nbytes = 8 + len(header) + self._at
            self._file.close()
            if error is None:
                self._temporary.replace(self._path)
        finally:
            self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _header(self) -> bytes:
        metadata = {
            "format": FORMAT,
            "version": str(VERSION),
            "kv_fingerprint": self._info.kv_fingerprint,
            "model": self._info.name,
            **facts_of(self._info),
            "start": "0",
            "ids": " ".join(map(str, self._ids.tolist())),
            "adapters": json.dumps(self._stacks),
            "parts": json.dumps(self._parts),
            "sums": " ".join(self._sums),
            "seal": _SEAL,
        }
        text = json.dumps({"__metadata__": metadata, **self._entries}, separators=(",", ":"))
        text = text.replace(_SEAL, sealed(text), 1)
        header = text.encode()
        if len(header) > self._room:
            raise OSError(f"a snapshot's header of {len(header):,} bytes where {self._room:,} were set aside")
        return header.ljust(self._room)


class SnapshotReader:
    """A checked snapshot: format, seal, model and the checksum of each part.

    Attributes:
        ids: The path's tokens.
        spans: The tokens by namespace.
        before: (end, namespace) of all spans except the last.
    """

    def __init__(self, file: Any, metadata: dict[str, str], fingerprint: str) -> None:
        self._file = file
        try:
            self.ids = np.array([int(token) for token in metadata["ids"].split()], np.int32)
            stacks = [(int(n), tuple((str(d), float(s)) for d, s in stack)) for n, stack in json.loads(metadata["adapters"])]
            self._parts = [(int(start), int(stop)) for start, stop in json.loads(metadata["parts"])]
            self._sums = metadata["sums"].split()
        except (KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise SnapshotFormatError(f"the snapshot's header is damaged: {error}") from error
        self.spans: list[Span] = []
        self.before: tuple[tuple[int, Hashable], ...] = ()
        at = 0
        for n, stack in stacks:
            self.spans.append((namespaced(fingerprint, stack), self.ids[at : at + n]))
            at += n
            self.before = (*self.before, (at, self.spans[-1][0]))
        self.before = self.before[:-1]
        ends = [0, *(stop for _, stop in self._parts)]
        if at != len(self.ids) or not at or ends[-1] != at or [start for start, _ in self._parts] != ends[:-1]:
            raise SnapshotFormatError(f"the snapshot has {len(self.ids):,} ids, and parts up to {ends[-1]:,}")
        if len(self._sums) != len(self._parts):
            raise SnapshotFormatError("the snapshot lacks checksums")

    def check(self) -> None:
        """Compares all parts with their checksums.

        Raises:
            SnapshotFormatError: A damaged part.
        """
        names = self._names()
        for number, expected in enumerate(self._sums):
            digest = hashlib.sha256()
            for name in names[number]:
                digest.update(name.encode())
                digest.update(np.ascontiguousarray(self._tensor(f"{number}.{name}")).reshape(-1).view(np.uint8).data)
            if digest.hexdigest() != expected:
                start, stop = self._parts[number]
                raise SnapshotFormatError(f"the snapshot is damaged: tokens {start:,} to {stop:,} are not what was written")

    def parts(self, limit: int) -> Iterator[SnapshotPart]:
        """The parts in order, up to `limit` tokens."""
        names = self._names()
        namespaces = [namespace for namespace, ids in self.spans for _ in range(len(ids))]
        for number, (start, stop) in enumerate(self._parts):
            if start >= limit:
                return
            arrays = {name: self._tensor(f"{number}.{name}") for name in names[number]}
            if stop > limit:
                scores = {name: array[: limit - start] for name, array in arrays.items() if name.startswith("scores.")}
                arrays, stop = {**first(arrays, limit - start), **scores}, limit
            yield SnapshotPart(start, stop, namespaces[start], arrays)

    def _names(self) -> list[list[str]]:
        names: list[list[str]] = [[] for _ in self._parts]
        for key in self._file.keys():  # noqa: SIM118  # not a mapping
            number, _, name = key.partition(".")
            if not number.isdigit() or int(number) >= len(names):
                raise SnapshotFormatError(f"the snapshot holds an array {key!r} that belongs to none of its parts")
            names[int(number)].append(name)
        return [sorted(each) for each in names]

    def _tensor(self, key: str) -> np.ndarray[Any, Any]:
        tensor: np.ndarray[Any, Any] = self._file.get_tensor(key)
        return tensor


@contextmanager
def open_snapshot(path: Path, info: ModelInfo) -> Iterator[SnapshotReader]:
    """Opens a snapshot of this model, completely checked.

    Raises:
        SnapshotFormatError: The file is not a snapshot, is damaged or newer, or does not begin at its path's first token.
        SnapshotMismatchError: It is of another model.
        OSError: The file cannot be read.
    """
    from safetensors import SafetensorError, safe_open  # needed only here

    _check_seal(path)
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            _check_header(metadata, info)
            snapshot = SnapshotReader(file, metadata, info.kv_fingerprint)
            snapshot.check()
            yield snapshot
    except SafetensorError as error:
        raise SnapshotFormatError(f"{path.name} is damaged or no safetensors file: {error}") from error


def _check_header(metadata: dict[str, str], info: ModelInfo) -> None:
    if int(metadata["version"]) > VERSION:
        raise SnapshotFormatError(f"the snapshot has format {metadata['version']}, newer than {VERSION}: update this program")
    if metadata.get("start") != "0":
        raise SnapshotFormatError(
            f"the snapshot begins at token {metadata.get('start')}: only one that begins at its path's first token (0) can be "
            "restored"
        )
    if metadata.get("kv_fingerprint") == info.kv_fingerprint:
        return
    for name, value in facts_of(info).items():
        if metadata.get(name) != value:
            raise SnapshotMismatchError(
                f"the snapshot is of another {_WHAT[name]}: {metadata.get(name)!r}, this model has {value!r}; "
                "compute the text again"
            )
    raise SnapshotMismatchError(
        f"the snapshot is of other weights (those of {metadata.get('model')!r}, this is {info.name!r}); compute the text again"
    )


def _check_seal(path: Path) -> None:
    """Checks that the header is that of a snapshot, and undamaged."""
    with open_regular(path) as file:
        size = int.from_bytes(file.read(8), "little")
        held = os.fstat(file.fileno()).st_size
        text = file.read(size).rstrip(b" ").decode(errors="replace") if 8 + size <= held and size <= _MOST_HEADER else ""
    try:
        metadata = json.loads(text)["__metadata__"]
        ours, seal = metadata["format"] == FORMAT, str(metadata["seal"])
        int(metadata["version"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotFormatError(f"{path.name} is no snapshot of ours, or is cut") from error
    if not ours:
        raise SnapshotFormatError(f"{path.name} is no snapshot of ours: its format is {metadata['format']!r}")
    if len(seal) != len(_SEAL) or sealed(text.replace(seal, _SEAL, 1)) != seal:
        raise SnapshotFormatError(f"{path.name}: its header is damaged")


def sealed(text: str) -> str:
    """The seal of a header, a SHA-256 in hexadecimal; `text` has zeros in the place of the seal."""
    return hashlib.sha256(text.encode()).hexdigest()
