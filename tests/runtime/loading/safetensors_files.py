"""Safetensors files for tests, written byte by byte: files with each kind of damage, and the expected message."""

from __future__ import annotations

import json
import struct
from typing import Any

DATA = bytes(range(32))


def packed(header: bytes | dict[str, Any], data: bytes = DATA, *, length: int | None = None) -> bytes:
    """A file; `length` overrides the true length of its header."""
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + data


def entry(dtype: str = "F32", shape: tuple[int, ...] = (8,), offsets: tuple[int, int] = (0, 32)) -> dict[str, Any]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


GOOD = packed({"a": entry()})
_LINE = b'{"a":{"dtype":"F32","shape":[8],"data_offsets":[0,32]}}'


def bad_files() -> dict[str, bytes]:
    """Damaged files by their fault."""
    half = entry(shape=(4,), offsets=(0, 16))
    return {
        "empty": b"",
        "shorter than a length": b"\x40" + b"\0" * 6,
        "only a length": struct.pack("<Q", 64),
        "a pickle": b"\x80\x04\x95" + bytes(200),
        "a GGUF": b"GGUF" + bytes(200),
        "header of nothing": packed(b""),
        "header length of 2**64 - 1": packed(_LINE, length=(1 << 64) - 1),
        "header length of 2**63": packed(_LINE, length=1 << 63),
        "header length beyond the file": packed(_LINE, length=1 << 20),
        "header length one too many": packed(_LINE, length=len(_LINE) + 1),
        "header length one too few": packed(_LINE, length=len(_LINE) - 1),
        "huge header": packed(_LINE + b" " * (33 << 20)),
        "header that is not UTF-8": packed(_LINE.replace(b'"a"', b'"a\xff"')),
        "header with half a character": packed(_LINE.replace(b'"a"', b'"\\ud800"')),
        "header that is a list": packed(b"[1, 2]"),
        "header that is null": packed(b"null"),
        "header cut off": packed(_LINE[:-3]),
        "deep JSON": packed(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        "NaN in a shape": packed(_LINE.replace(b"[8]", b"[NaN]")),
        "fraction in a shape": packed(_LINE.replace(b"[8]", b"[8.0]")),
        "negative side": packed({"a": entry(shape=(-8,))}),
        "negative offsets": packed({"a": entry(offsets=(-32, 0))}),
        "offsets turned around": packed({"a": entry(offsets=(32, 0))}),
        "offsets beyond the file": packed({"a": entry(shape=(1 << 20,), offsets=(0, 1 << 22))}),
        "offsets of 2**64": packed(_LINE.replace(b"32]", b"18446744073709551616]")),
        "shape that does not fill its place": packed({"a": entry(shape=(7,))}),
        "shape that overflows 64 bits": packed({"a": entry(shape=(1 << 40, 1 << 40))}),
        "shape of nothing, enormous": packed({"a": entry(shape=(1 << 62, 0), offsets=(0, 0)), "b": entry()}),
        "10,000 dimensions": packed({"a": entry(shape=(*(1,) * 10_000, 8))}),
        "overlapping tensors": packed({"a": entry(), "b": entry()}),
        "partly overlapping tensors": packed(
            {"a": entry(shape=(6,), offsets=(0, 24)), "b": {**half, "data_offsets": [16, 32]}}
        ),
        "gap between tensors": packed({"a": half, "b": entry(shape=(2,), offsets=(24, 32))}),
        "bytes after the last tensor": packed({"a": half}),
        "truncated in the weights": GOOD[:-1],
        "unknown format": packed({"a": entry("F33")}),
        "complex numbers": packed({"a": entry("C64", (4,))}),
        "format of half bytes": packed({"a": entry("F4", (64,))}),
        "format that is a number": packed({"a": {**entry(), "dtype": 7}}),
        "tensor that is a list": packed({"a": [1]}),
        "no offsets": packed({"a": {"dtype": "F32", "shape": [8]}}),
        "tensor twice": packed(_LINE[:-1] + b"," + _LINE[1:]),
        "field twice": packed(_LINE.replace(b'"shape"', b'"dtype":"I32","shape"')),
        "metadata twice": packed(b'{"__metadata__":{},"__metadata__":{},' + _LINE[1:]),
        "key of the metadata twice": packed(b'{"__metadata__":{"a":"b","a":"c"},' + _LINE[1:]),
        "metadata that is a number": packed(b'{"__metadata__":{"a":1},' + _LINE[1:]),
        "tensor without a name": packed({"": entry()}),
        "name with a NUL": packed({"a\0b": entry()}),
        "name of several lines": packed({"a\nb": entry()}),
        "enormous name": packed({"a" * 10_000: entry()}),
        "no tensors": packed({}, b""),
        "only metadata": packed({"__metadata__": {"format": "pt"}}, b""),
    }
