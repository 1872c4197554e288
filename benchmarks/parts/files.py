"""Model files: checking the header of a large one, bytes read by verifying, and the size of one that stays quantised."""

from __future__ import annotations

import json
import os
import struct
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from unittest.mock import patch

import numpy as np
import psutil
from safetensors.numpy import save_file

from benchmarks.children.child import measure_in_child
from benchmarks.clock import Told
from benchmarks.findings import Case, Findings
from benchmarks.sizes import Sizes
from runtime import ModelShelf, models_dir, plan_import

ROW = "files"
HEADER_BAR, FLAT_BAR, ONCE_BAR = 1.0, 1.05, 1.01  # CPU seconds; memory over a smaller file's; bytes read over bytes on disk
WIDTH, INNER, HEADS, KV_HEADS = 4096, 14336, 32, 8  # of Llama 3 8B
Q8_0, F32 = (8, 32, 34), (0, 1, 4)  # ggml's type number, values per block, bytes per block
VERIFIED = "model.safetensors"
QUANTISED_ROW = "quantised"
KEPT_BAR = 1.6  # bytes on the disk or in memory over bytes of the file
SMOLLM2 = Path("smollm2", "source.gguf")  # 4 bits per weight, the embedding 8


def files(case: Case, sizes: Sizes, tell: Told) -> Findings:
    """Header and verification of model files; times are CPU seconds of the process, medians of several laps."""
    tell(ROW)
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as name:
        folder = Path(name)
        packed = written_gguf(folder / "packed.gguf", sizes, Q8_0)
        plain = written_gguf(folder / "plain.gguf", sizes, F32)
        taken = median(_seconds(packed) for _ in range(sizes.rounds))
        small, large = (_peak(path) for path in (packed, plain))
        gigabytes = packed.stat().st_size / 1e9
        more = plain.stat().st_size / packed.stat().st_size
        read = _verified(folder, sizes)
    verdict = partial(case.verdict, ROW, timed=False)
    once = [] if read is None else [verdict("bytes read by verifying a model / bytes of its files", read, ONCE_BAR)]
    return Findings(
        verdicts=(
            verdict(f"cpu s: header of a GGUF file of {gigabytes:.1f} GB checked", taken, HEADER_BAR, timed=True),
            verdict(f"memory for that of a file {more:.1f} times as large / for that one", large / small, FLAT_BAR),
            *once,
        )
    )


def quantised(case: Case, sizes: Sizes, tell: Told) -> Findings:  # noqa: ARG001  # one file of one size
    """Bytes of SmolLM2's GGUF file on hf if it stays quantised, on the disk and in memory."""
    tell(QUANTISED_ROW)
    file = models_dir() / SMOLLM2
    what = "a GGUF file of 4 bits, bytes {0} / bytes of the file"
    found = measure_in_child("benchmarks.children.quantised", file, what="what a quantised file takes on hf was")
    return Findings(
        verdicts=tuple(
            replace(case, backend="hf").verdict(QUANTISED_ROW, what.format(place), found[name] / found["file"], KEPT_BAR)
            for name, place in (("disk", "on the disk"), ("memory", "in memory"))
            if found
        )
    )


def written_gguf(path: Path, sizes: Sizes, form: tuple[int, int, int]) -> Path:
    """Writes a sparse file of a model's size: a complete header, then a hole for the weights."""
    words, layers = sizes.words, sizes.file_layers
    tokens = [f"word{number}".encode() for number in range(words)]
    merges = [f"wo rd{number}".encode() for number in range(2 * words)]
    pairs = {
        "general.architecture": _text(b"llama"),
        "llama.block_count": _number(layers),
        "llama.context_length": _number(8192),
        "llama.embedding_length": _number(WIDTH),
        "llama.feed_forward_length": _number(INNER),
        "llama.attention.head_count": _number(HEADS),
        "llama.attention.head_count_kv": _number(KV_HEADS),
        "llama.attention.layer_norm_rms_epsilon": struct.pack("<If", 6, 1e-5),
        "tokenizer.ggml.model": _text(b"gpt2"),
        "tokenizer.ggml.pre": _text(b"llama-bpe"),
        "tokenizer.ggml.tokens": _array(8, tokens),
        "tokenizer.ggml.merges": _array(8, merges),
        "tokenizer.ggml.token_type": struct.pack("<IIQ", 9, 5, words) + np.ones(words, "<i4").tobytes(),
    }
    at, tensors = 0, []
    for name, shape in _tensors(layers, words):
        kind, block, size = form if len(shape) == 2 else F32
        dims = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        tensors.append(_counted(name.encode()) + dims + struct.pack("<IQ", kind, at))
        at += -(-int(np.prod(shape)) // block * size // 32) * 32
    preamble = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs))
    header = preamble + b"".join(_counted(key.encode()) + value for key, value in pairs.items()) + b"".join(tensors)
    with path.open("wb") as file:
        file.write(header)
        file.truncate(-(-len(header) // 32) * 32 + at)
    return path


def _tensors(layers: int, words: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    keys = WIDTH // HEADS * KV_HEADS
    yield "token_embd.weight", (words, WIDTH)
    for n in range(layers):
        for name, rows, columns in (
            ("attn_q", WIDTH, WIDTH), ("attn_k", keys, WIDTH), ("attn_v", keys, WIDTH), ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", INNER, WIDTH), ("ffn_up", INNER, WIDTH), ("ffn_down", WIDTH, INNER),
        ):  # fmt: skip
            yield f"blk.{n}.{name}.weight", (rows, columns)
        yield f"blk.{n}.attn_norm.weight", (WIDTH,)
        yield f"blk.{n}.ffn_norm.weight", (WIDTH,)
    yield "output_norm.weight", (WIDTH,)
    yield "output.weight", (words, WIDTH)


def _text(value: bytes) -> bytes:
    return struct.pack("<I", 8) + _counted(value)


def _number(value: int) -> bytes:
    return struct.pack("<II", 4, value)


def _array(kind: int, values: list[bytes]) -> bytes:
    return struct.pack("<IIQ", 9, kind, len(values)) + b"".join(map(_counted, values))


def _counted(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def _seconds(path: Path) -> float:
    started = time.process_time()
    plan_import(path)
    return time.process_time() - started


def _peak(path: Path) -> int:
    """Peak bytes that Python and numpy allocate while a file is checked."""
    tracemalloc.start()
    try:
        plan_import(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _verified(folder: Path, sizes: Sizes) -> float | None:
    """Bytes read while a model is verified, over the bytes of its files; None if the system does not count them."""
    if not hasattr(psutil.Process, "io_counters"):
        return None
    model = folder / "model"
    model.mkdir()
    save_file({"weight": np.ones(sizes.file_verified // 4, np.float32)}, model / VERIFIED)
    (model / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (model / "tokenizer.json").write_text("{}")
    with patch.dict(os.environ, {"ELSEWISE_MODELS": str(folder / "shelf")}):
        shelf = ModelShelf()
        entry = shelf.add(model, "verified")
        before = psutil.Process().io_counters().read_chars
        shelf.verify("verified")
        return float((psutil.Process().io_counters().read_chars - before) / entry.bytes)
