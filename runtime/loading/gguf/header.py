"""GGUF headers: every length, offset, count, type and alignment is checked before any native parser opens the file.

Native readers trust these numbers and crash on wrong ones (gguf-py also hangs on some). Here all of them are bounded by the
size of the file. Time and memory grow with the header, not with the weights: 0.2 s for 50,000 tokens and their merges.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from resources.files import open_regular
from runtime.errors import ModelLoadError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_BIG_ENDIAN = tuple(version.to_bytes(4, "little") for version in VERSIONS)
DEFAULT_ALIGNMENT = 32

PREAMBLE_BYTES = 24  # magic number, version, and the two counts
MAX_PAIRS = 1 << 14
MAX_TENSORS = 1 << 16
MAX_NAME_BYTES = 512
MAX_STRING_BYTES = 4 << 20  # the longest strings of valid files are chat templates
MAX_ARRAY_ITEMS = 1 << 22  # of all arrays of a file together; valid files hold about a million
MAX_HEADER_BYTES = 128 << 20
MAX_DIMENSIONS = 4

# value types and their struct codes
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How a tensor's values are packed: `block` values in `size` bytes."""

    name: str
    block: int
    size: int


# By ggml's type number: name, values and bytes of a block. Missing numbers were removed from ggml or never used in files.
_FORMATS: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2),
    26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54), 35: ("TQ2_0", 256, 66),
}  # fmt: skip
FORMATS = {kind: TensorFormat(*form) for kind, form in _FORMATS.items()}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checked file."""

    name: str
    shape: tuple[int, ...]  # as numpy has it, rows first: the reverse of ggml's order
    format: TensorFormat
    offset: int  # bytes from the start of the file

    @property
    def values(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.values // self.format.block * self.format.size


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata and tensors of a checked file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    file_bytes: int

    @property
    def architecture(self) -> str:
        """``general.architecture``; empty where the file has none."""
        return str(self.metadata.get("general.architecture", ""))


def whole_number(header: GgufHeader, key: str, limit: int, default: int | None = None) -> int:
    """Reads a whole number from 1 to `limit` from the metadata.

    Raises:
        ModelLoadError: Missing and without a default, another kind, or out of range.
    """
    value = header.metadata.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise fault(header, f"{key} is {'missing' if value is None else repr(value)[:60]}; 1 to {limit:,} is possible")
    return value


def positive_number(header: GgufHeader, key: str, default: float | None = None) -> float:
    """Reads a positive number from the metadata, rounded as in the model's own config: 1e-05, not 9.999999747378752e-06.

    Raises:
        ModelLoadError: Missing and without a default, another kind, or out of range.
    """
    value = header.metadata.get(key, default)
    if not isinstance(value, float) or not 0 < value < 1e12:
        raise fault(header, f"{key} is {'missing' if value is None else repr(value)[:60]}, not a positive number")
    return float(str(np.float32(value)))


def fault(header: GgufHeader, what: str) -> ModelLoadError:
    """An error that names the file."""
    return ModelLoadError(f"{header.path}: {what}")


def read_header(path: Path) -> GgufHeader:
    """The checked header of a file.

    Raises:
        ModelLoadError: Not a GGUF file, damaged, truncated or of an unknown kind; names the byte where the header is damaged.
    """
    try:
        with open_regular(path) as stream:
            return _Reader(path, stream, os.fstat(stream.fileno()).st_size).header()
    except OSError as fault:
        raise ModelLoadError(f"{path}: cannot be read ({fault.strerror}); check the path and its permissions") from fault


class _Reader:
    """Reads a header from the start of a file; every read is checked against the file's size."""

    def __init__(self, path: Path, stream: BinaryIO, size: int) -> None:
        self.path, self.stream, self.size = path, stream, size
        self.at = 0
        self.items = 0

    def header(self) -> GgufHeader:
        tensor_count, pair_count = self.preamble()
        metadata = self.metadata(pair_count)
        alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or not 8 <= alignment <= 1 << 16 or alignment & (alignment - 1):
            raise self.fault(f"general.alignment is {alignment!r}, not a power of two between 8 and 65,536")
        entries = [self.tensor(number) for number in range(tensor_count)]
        start = _aligned(self.at, alignment)
        return GgufHeader(
            path=self.path,
            metadata=metadata,
            tensors=self.placed(entries, start, alignment),
            file_bytes=self.size,
        )

    def preamble(self) -> tuple[int, int]:
        if self.size < len(MAGIC) or self.take(4, "the magic number") != MAGIC:
            raise ModelLoadError(f"{self.path}: not a GGUF file (it does not begin with 'GGUF')")
        if self.size < PREAMBLE_BYTES:
            raise ModelLoadError(
                f"{self.path}: a GGUF file cut short: {self.size} bytes, its header alone has {PREAMBLE_BYTES}; fetch it again"
            )
        version = self.u32("the version")
        if version not in VERSIONS:
            hint = "a big-endian file" if version.to_bytes(4, "little")[::-1] in _BIG_ENDIAN else "known: 2 and 3"
            raise ModelLoadError(f"{self.path}: GGUF version {version} is not supported ({hint})")
        tensors, pairs = self.u64("the tensor count"), self.u64("the metadata count")
        if not 1 <= tensors <= MAX_TENSORS:
            raise self.fault(f"{tensors:,} tensors; 1 to {MAX_TENSORS:,} are possible")
        if pairs > MAX_PAIRS:
            raise self.fault(f"{pairs:,} metadata entries; at most {MAX_PAIRS:,} are possible")
        return tensors, pairs

    def metadata(self, count: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(count):
            key = self.name("a metadata key")
            if key in metadata:
                raise self.fault(f"the metadata key {key!r} stands there twice")
            metadata[key] = self.value(self.u32(f"the type of {key}"), key)
        return metadata

    def value(self, kind: int, key: str) -> Any:
        if kind == STRING:
            return self.string(key, MAX_STRING_BYTES)
        if kind == ARRAY:
            return self.array(key)
        if kind not in SCALARS:
            raise self.fault(f"{key} has the unknown value type {kind}")
        return self.scalars(kind, 1, key)[0]

    def array(self, key: str) -> list[Any]:
        kind, count = self.u32(f"the item type of {key}"), self.u64(f"the length of {key}")
        self.items += count
        if self.items > MAX_ARRAY_ITEMS:
            raise self.fault(f"{key}: {count:,} items; arrays of a file may hold {MAX_ARRAY_ITEMS:,} in all")
        if kind == STRING:
            if count * 8 > self.size - self.at:
                raise self.fault(f"{key}: {count:,} strings do not fit into the file")
            return [self.string(key, MAX_STRING_BYTES) for _ in range(count)]
        if kind not in SCALARS:
            raise self.fault(f"{key} is an array of the unsupported value type {kind}")
        return list(self.scalars(kind, count, key))

    def scalars(self, kind: int, count: int, key: str) -> tuple[Any, ...]:
        code = SCALARS[kind]
        values = struct.unpack(f"<{count}{code}", self.take(count * struct.calcsize(f"<{code}"), key))
        if kind == BOOL:
            if any(value > 1 for value in values):
                raise self.fault(f"{key} has a truth value that is neither 0 nor 1")
            return tuple(bool(value) for value in values)
        if code in "fd" and not all(map(math.isfinite, values)):
            raise self.fault(f"{key} is not a finite number")
        return values

    def tensor(self, number: int) -> tuple[str, tuple[int, ...], int, int]:
        name = self.name(f"the name of tensor {number}")
        dimensions = self.u32(f"the dimensions of {name}")
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise self.fault(f"tensor {name} has {dimensions:,} dimensions; 1 to {MAX_DIMENSIONS} are possible")
        shape = tuple(self.u64(f"the shape of {name}") for _ in range(dimensions))
        return name, shape, self.u32(f"the format of {name}"), self.u64(f"the offset of {name}")

    def placed(self, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int) -> dict[str, TensorInfo]:
        """Tensors by name; they must follow each other without gap or overlap to the end of the file."""
        tensors: dict[str, TensorInfo] = {}
        end = start
        for name, shape, kind, offset in entries:
            if name in tensors:
                raise self.fault(f"the tensor {name} stands there twice")
            if kind not in FORMATS:
                raise self.fault(f"tensor {name} has the unknown format {kind}")
            info = TensorInfo(name, shape[::-1], FORMATS[kind], start + offset)
            if 0 in shape or shape[0] % info.format.block:
                raise self.fault(f"tensor {name}: the shape {shape} does not fit the format {info.format.name}")
            if info.offset != _aligned(end, alignment):
                raise self.fault(f"tensor {name} begins at byte {info.offset:,} instead of {_aligned(end, alignment):,}")
            end = info.offset + info.nbytes
            if end > self.size:
                raise self.fault(f"tensor {name} ends at byte {end:,}, the file at {self.size:,}: it is truncated or damaged")
            tensors[name] = info
        if self.size > _aligned(end, alignment):
            raise self.fault(f"{self.size - end:,} bytes after the last tensor belong to nothing")
        return tensors

    def name(self, what: str) -> str:
        text = self.string(what, MAX_NAME_BYTES)
        if not text or not text.isascii() or not text.isprintable():
            raise self.fault(f"{what} is {text!r}, not printable ASCII")
        return text

    def string(self, what: str, limit: int) -> str:
        length = self.u64(what)
        if length > limit:
            raise self.fault(f"{what}: a text of {length:,} bytes; at most {limit:,} are possible")
        try:
            return self.take(length, what).decode()
        except UnicodeDecodeError:
            raise self.fault(f"{what} is not UTF-8") from None

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def take(self, count: int, what: str) -> bytes:
        if count > self.size - self.at:
            raise self.fault(f"{what} needs {count:,} bytes, {self.size - self.at:,} are left: truncated or damaged")
        self.at += count
        if self.at > MAX_HEADER_BYTES:
            raise self.fault(f"the header is longer than {MAX_HEADER_BYTES:,} bytes")
        data = self.stream.read(count)
        if len(data) != count:
            raise self.fault("the file shrank while it was read")
        return data

    def fault(self, what: str) -> ModelLoadError:
        return ModelLoadError(f"{self.path}: damaged GGUF header near byte {self.at:,}: {what}; fetch the file again")


def _aligned(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment
