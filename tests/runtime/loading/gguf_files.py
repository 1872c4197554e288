"""GGUF files for tests, written byte by byte: a small sound llama, and files with every kind of damage."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

U32, I32, F32, BOOL, STRING, ARRAY, U64 = 4, 5, 6, 7, 8, 9, 10
CODES = {U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", ARRAY: "B"}

HIDDEN, LAYERS, HEADS, KV_HEADS, INNER = 64, 2, 4, 2, 96
SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MERGES = ("h e", "l l", "he ll", "hell o", "Ġ t", "Ċ Ċ")


@dataclass(frozen=True)
class Pair:
    """One metadata entry; `item` is the type of an array's items."""

    key: str
    kind: int
    value: Any
    item: int = 0

    def pack(self) -> bytes:
        return text(self.key) + struct.pack("<I", self.kind) + self.body()

    def body(self) -> bytes:
        if self.kind == STRING:
            return text(self.value)
        if self.kind != ARRAY:
            return struct.pack(f"<{CODES[self.kind]}", self.value)
        head = struct.pack("<IQ", self.item, len(self.value))
        if self.item == STRING:
            return head + b"".join(map(text, self.value))
        return head + struct.pack(f"<{len(self.value)}{CODES[self.item]}", *self.value)


@dataclass(frozen=True)
class Stored:
    """One tensor: `shape` as in numpy; `offset` and `dims` override the right values."""

    name: str
    shape: tuple[int, ...]
    kind: int
    data: bytes
    offset: int | None = None
    dims: tuple[int, ...] | None = None


@dataclass(frozen=True)
class GgufFile:
    """A whole file; every field may be spoiled."""

    pairs: tuple[Pair, ...]
    tensors: tuple[Stored, ...]
    magic: bytes = b"GGUF"
    version: int = 3
    tensor_count: int | None = None
    pair_count: int | None = None
    alignment: int = 32
    tail: bytes = b""

    def pack(self) -> bytes:
        counts = (
            len(self.tensors) if self.tensor_count is None else self.tensor_count,
            len(self.pairs) if self.pair_count is None else self.pair_count,
        )
        head = self.magic + struct.pack("<IQQ", self.version, *counts) + b"".join(pair.pack() for pair in self.pairs)
        data = b""
        for tensor in self.tensors:
            dims = tensor.shape[::-1] if tensor.dims is None else tensor.dims
            offset = len(data) if tensor.offset is None else tensor.offset
            head += text(tensor.name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, tensor.kind, offset)
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return head + bytes(-len(head) % self.alignment) + data + self.tail

    def write(self, path: Path) -> Path:
        path.write_bytes(self.pack())
        return path

    def with_pair(self, key: str, kind: int, value: Any, item: int = 0) -> GgufFile:
        """Replaces or adds a metadata entry."""
        others = tuple(pair for pair in self.pairs if pair.key != key)
        return dataclasses.replace(self, pairs=(*others, Pair(key, kind, value, item)))

    def without(self, key: str) -> GgufFile:
        return dataclasses.replace(self, pairs=tuple(pair for pair in self.pairs if pair.key != key))

    def with_tensor(self, which: str, **changes: Any) -> GgufFile:
        changed = tuple(dataclasses.replace(t, **changes) if t.name == which else t for t in self.tensors)
        return dataclasses.replace(self, tensors=changed)


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(data)) + data


def byte_characters() -> list[str]:
    """GPT-2's printable stand-ins of the 256 bytes, in byte order; taken from the tokenizers library."""
    from tokenizers import pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    visible = {c for c in alphabet if ord(c) < 256}
    moved = iter(sorted(set(alphabet) - visible))
    return [chr(byte) if chr(byte) in visible else next(moved) for byte in range(256)]


def vocabulary() -> list[str]:
    return [*SPECIALS, *byte_characters(), *(merge.replace(" ", "") for merge in MERGES)]


def llama_pairs(tokens: list[str], merges: list[str], *, pre: str = "smollm", theta: float = 10000.0) -> tuple[Pair, ...]:
    """The metadata of a small llama."""
    types = [3 if token in SPECIALS else 1 for token in tokens]
    return (
        Pair("general.architecture", STRING, "llama"),
        Pair("general.name", STRING, "Tiny Llama"),
        Pair("llama.block_count", U32, LAYERS),
        Pair("llama.context_length", U32, 512),
        Pair("llama.embedding_length", U32, HIDDEN),
        Pair("llama.feed_forward_length", U32, INNER),
        Pair("llama.attention.head_count", U32, HEADS),
        Pair("llama.attention.head_count_kv", U32, KV_HEADS),
        Pair("llama.attention.layer_norm_rms_epsilon", F32, 1e-6),
        Pair("llama.rope.freq_base", F32, theta),
        Pair("tokenizer.ggml.model", STRING, "gpt2"),
        Pair("tokenizer.ggml.pre", STRING, pre),
        Pair("tokenizer.ggml.tokens", ARRAY, tokens, STRING),
        Pair("tokenizer.ggml.token_type", ARRAY, types, I32),
        Pair("tokenizer.ggml.merges", ARRAY, merges, STRING),
        Pair("tokenizer.ggml.bos_token_id", U32, 1),
        Pair("tokenizer.ggml.eos_token_id", U32, 2),
        Pair("tokenizer.ggml.add_bos_token", BOOL, 0),
        Pair("tokenizer.chat_template", STRING, "{% for m in messages %}{{ m.content }}{% endfor %}"),
    )


def small_llama(seed: int = 0) -> GgufFile:
    """A sound file of about 300 KB: random float32 weights, a byte-level tokenizer."""
    draw = np.random.default_rng(seed)
    tokens = vocabulary()
    kv = HIDDEN // HEADS * KV_HEADS
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (len(tokens), HIDDEN)}
    for n in range(LAYERS):
        shapes |= {
            f"blk.{n}.attn_norm.weight": (HIDDEN,),
            f"blk.{n}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{n}.attn_k.weight": (kv, HIDDEN),
            f"blk.{n}.attn_v.weight": (kv, HIDDEN),
            f"blk.{n}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{n}.ffn_norm.weight": (HIDDEN,),
            f"blk.{n}.ffn_gate.weight": (INNER, HIDDEN),
            f"blk.{n}.ffn_up.weight": (INNER, HIDDEN),
            f"blk.{n}.ffn_down.weight": (HIDDEN, INNER),
        }
    shapes["output_norm.weight"] = (HIDDEN,)
    tensors = tuple(stored(name, draw.normal(size=shape).astype(np.float32)) for name, shape in shapes.items())
    return GgufFile(llama_pairs(tokens, list(MERGES)), tensors)


def stored(name: str, values: npt.NDArray[np.float32]) -> Stored:
    """A float32 tensor."""
    return Stored(name, values.shape, 0, values.astype("<f4").tobytes())


def _edit(at: int, data: bytes) -> Callable[[bytes], bytes]:
    return lambda whole: whole[:at] + data + whole[at + len(data) :]


def bad_files() -> dict[str, bytes]:
    """Damaged files by their fault; each must be refused before a native parser sees it."""
    good = small_llama()
    whole = good.pack()
    u64 = struct.Struct("<Q").pack
    first = good.tensors[0]
    norm = "blk.0.attn_norm.weight"
    files: dict[str, GgufFile | bytes] = {
        "empty": b"",
        "only the magic": b"GGUF",
        "another format": b"PK\x03\x04" + whole[4:],
        "text": b"this is not a model\n" * 100,
        "version 1": dataclasses.replace(good, version=1),
        "version of the future": dataclasses.replace(good, version=4),
        "big-endian": _edit(4, b"\0\0\0\x03")(whole),
        "no tensors": dataclasses.replace(good, tensors=()),
        "tensor count of 2**63": dataclasses.replace(good, tensor_count=1 << 63),
        "one tensor more than there is": dataclasses.replace(good, tensor_count=len(good.tensors) + 1),
        "metadata count of 2**63": dataclasses.replace(good, pair_count=1 << 63),
        "metadata count too small": dataclasses.replace(good, pair_count=3),
        "key length beyond the file": _edit(24, u64(1 << 40))(whole),
        "key length of 2**64 - 1": _edit(24, b"\xff" * 8)(whole),
        "empty key": dataclasses.replace(good, pairs=(*good.pairs, Pair("", U32, 1))),
        "key with a NUL": dataclasses.replace(good, pairs=(*good.pairs, Pair("a\0b", U32, 1))),
        "key twice": dataclasses.replace(good, pairs=(*good.pairs, good.pairs[2])),
        "unknown value type": _edit(24 + len(text("general.architecture")), struct.pack("<I", 99))(whole),
        "text that is not UTF-8": good.with_pair("general.name", STRING, b"\xff\xfe"),
        "truth value of 2": good.with_pair("tokenizer.ggml.add_bos_token", BOOL, 2),
        "NaN": good.with_pair("llama.rope.freq_base", F32, float("nan")),
        "array of arrays": good.with_pair("x", ARRAY, [], ARRAY),
        "array longer than the file": whole.replace(
            struct.pack("<IQ", STRING, len(vocabulary())), struct.pack("<IQ", STRING, 1 << 40)
        ),
        "alignment of 0": good.with_pair("general.alignment", U32, 0),
        "alignment of 33": good.with_pair("general.alignment", U32, 33),
        "alignment that is text": good.with_pair("general.alignment", STRING, "32"),
        "tensor twice": dataclasses.replace(good, tensors=(*good.tensors, good.tensors[-1])),
        "tensor without a name": good.with_tensor(norm, name=""),
        "no dimensions": good.with_tensor(norm, dims=()),
        "1,000 dimensions": good.with_tensor(norm, dims=(1,) * 1000),
        "a dimension of 0": good.with_tensor(norm, dims=(0,)),
        "dimensions that overflow 64 bits": good.with_tensor(norm, dims=(1 << 62, 1 << 62)),
        "unknown tensor format": good.with_tensor(norm, kind=4),
        "row that is no multiple of the block": good.with_tensor(norm, kind=12),
        "offset off the alignment": good.with_tensor(norm, offset=len(first.data) + 1),
        "offset beyond the file": good.with_tensor(norm, offset=1 << 40),
        "overlapping tensors": good.with_tensor(norm, offset=0),
        "truncated in the header": whole[:700],
        "truncated in the weights": whole[:-1000],
        "bytes after the end": dataclasses.replace(good, tail=b"\0" * 4096),
    }
    return {name: file if isinstance(file, bytes) else file.pack() for name, file in files.items()}


def unsuitable_files() -> dict[str, GgufFile]:
    """Sound GGUF files that cannot be imported as a model."""
    good = small_llama()
    tokens = vocabulary()
    one = np.ones(8, np.float32)
    return {
        "another architecture": good.with_pair("general.architecture", STRING, "mamba"),
        "no architecture": good.without("general.architecture"),
        "no heads": good.with_pair("llama.attention.head_count", U32, 0),
        "heads that do not divide": good.with_pair("llama.attention.head_count", U32, 7),
        "a million layers": good.with_pair("llama.block_count", U32, 1_000_000),
        "layers missing": good.with_pair("llama.block_count", U32, LAYERS + 1),
        "layers too many": good.with_pair("llama.block_count", U32, LAYERS - 1),
        "size that is text": good.with_pair("llama.embedding_length", STRING, "64"),
        "wrong size": good.with_pair("llama.feed_forward_length", U32, INNER * 2),
        "no context length": good.without("llama.context_length"),
        "negative rope base": good.with_pair("llama.rope.freq_base", F32, -1.0),
        "partial rotary": good.with_pair("llama.rope.dimension_count", U32, 8),
        "yarn without its numbers": good.with_pair("llama.rope.scaling.type", STRING, "yarn"),
        "longrope": good.with_pair("llama.rope.scaling.type", STRING, "longrope"),
        "rope scaling that is a number": good.with_pair("llama.rope.scaling.type", U32, 2),
        "linear rope without a factor": good.with_pair("llama.rope.scaling.type", STRING, "linear"),
        "linear rope of an older file": good.with_pair("llama.rope.scale_linear", F32, 2.0),
        "frequencies of nobody": dataclasses.replace(good, tensors=(*good.tensors, stored("rope_freqs.weight", one + one))),
        "frequencies too few": dataclasses.replace(good, tensors=(*good.tensors, stored("rope_freqs.weight", one[:4]))),
        "frequencies of half a pair": dataclasses.replace(
            good.with_pair("llama.rope.dimension_count", U32, 15),
            tensors=(*good.tensors, stored("rope_freqs.weight", 2 * one[:7])),
        ),
        "scaled queries": good.with_pair("llama.attention.scale", F32, 0.5),
        "window that is text": good.with_pair("llama.attention.sliding_window", STRING, "all"),
        "windows in turns": good.with_pair("llama.attention.sliding_window_pattern", U32, 2),
        "experts": good.with_pair("llama.expert_count", U32, 8),
        "one part of several": good.with_pair("split.count", U32, 3),
        "a tensor too many": dataclasses.replace(good, tensors=(*good.tensors, stored("rope_factors_long.weight", one))),
        "a bias": dataclasses.replace(good, tensors=(*good.tensors, stored("blk.0.attn_q.bias", np.ones(64, np.float32)))),
        "integers as weights": good.with_tensor("output_norm.weight", kind=26),
        "NaN in the weights": good.with_tensor("output_norm.weight", data=np.full(HIDDEN, np.nan, "<f4").tobytes()),
        "unknown pre-tokenizer": good.with_pair("tokenizer.ggml.pre", STRING, "qwen9"),
        "pre-tokenizer that is a list": good.with_pair("tokenizer.ggml.pre", ARRAY, ["smollm"], STRING),
        "no pre-tokenizer": good.without("tokenizer.ggml.pre"),
        "SentencePiece without scores": good.with_pair("tokenizer.ggml.model", STRING, "llama"),
        "unigram": good.with_pair("tokenizer.ggml.model", STRING, "t5"),
        "a kind of tokenizer that is a list": good.with_pair("tokenizer.ggml.model", ARRAY, ["gpt2"], STRING),
        "no tokens": good.without("tokenizer.ggml.tokens"),
        "too few tokens": good.with_pair("tokenizer.ggml.tokens", ARRAY, tokens[:-1], STRING),
        "a token twice": good.with_pair("tokenizer.ggml.tokens", ARRAY, [*tokens[:-1], tokens[-2]], STRING),
        "types of another length": good.with_pair("tokenizer.ggml.token_type", ARRAY, [1, 1], I32),
        "unknown token type": good.with_pair("tokenizer.ggml.token_type", ARRAY, [9] * len(tokens), I32),
        "merge of unknown tokens": good.with_pair("tokenizer.ggml.merges", ARRAY, ["h zebra"], STRING),
        "merge of one token": good.with_pair("tokenizer.ggml.merges", ARRAY, ["he"], STRING),
        "eos beyond the vocabulary": good.with_pair("tokenizer.ggml.eos_token_id", U32, 1 << 20),
        "template that is a number": good.with_pair("tokenizer.chat_template", U32, 1),
    }
