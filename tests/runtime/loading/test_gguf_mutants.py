from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from runtime.errors import ModelLoadError
from runtime.loading.convert import convert
from runtime.loading.gguf.convertible import check
from runtime.loading.gguf.header import read_header
from tests.runtime.loading.as_gguf import as_gguf
from tests.runtime.loading.gguf_files import small_llama
from tests.runtime.loading.pieces import gemma_pieces
from tests.runtime.loading.test_families import made

MUTANTS = int(os.environ.get("ELSEWISE_MUTANTS", "200"))  # of each kind of file; `make mutants` has more
MOST_SECONDS = 5  # of the processor, for one of them
EXTREMES = [0, 1, 0x7F, 0xFF, 1 << 31, (1 << 32) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]

LOAD_ALL = """
import sys
import mlx.core as mx
for path in sys.argv[1:]:
    try:
        mx.eval(list(mx.load(path).values()))
    except (RuntimeError, ValueError):
        pass
"""


@contextmanager
def no_longer() -> Iterator[None]:
    """Whatever takes more than `MOST_SECONDS` of the processor inside ends this process: nobody can catch it."""
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def mutated(whole: bytes, header: int, seed: int) -> bytes:
    """One seeded injury, most of them in the header."""
    draw = np.random.default_rng(seed)
    at = int(draw.integers(0, header if draw.random() < 0.9 else len(whole)))
    kind = draw.integers(0, 6)
    data = bytearray(whole)
    if kind == 0:
        for _ in range(int(draw.integers(1, 5))):
            data[int(draw.integers(0, header))] ^= 1 << int(draw.integers(0, 8))
    elif kind == 1:
        data[at] = int(draw.choice([0, 1, 0x7F, 0x80, 0xFF]))
    elif kind == 2:
        value = EXTREMES[int(draw.integers(0, len(EXTREMES)))]
        data[at : at + 8] = value.to_bytes(8, "little")
    elif kind == 3:
        del data[at:]
    elif kind == 4:
        del data[at : at + int(draw.integers(1, 64))]
    else:
        data[at:at] = data[at : at + int(draw.integers(1, 64))]
    return bytes(data)


@pytest.fixture(params=["llama", "gemma3"])
def whole(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    """A sound file: byte-level BPE in plain layers, or SentencePiece's in layers with windows, caps and shifted norms."""
    if request.param == "llama":
        return small_llama().pack()
    made("gemma3", tmp_path / "original")
    return as_gguf(tmp_path / "original", tmp_path / "tiny.gguf", vocabulary=gemma_pieces().pairs()).read_bytes()


@pytest.mark.slow
def test_a_mutant_is_refused_or_is_what_it_says(whole: bytes, tmp_path: Path) -> None:
    # given
    (tmp_path / "sound.gguf").write_bytes(whole)
    sound = read_header(tmp_path / "sound.gguf")
    refusals: list[str] = []
    accepted: list[Path] = []
    for seed in range(MUTANTS):
        path = tmp_path / f"{seed}.gguf"
        path.write_bytes(mutated(whole, sound.data_start, seed))
        target = tmp_path / f"{seed}"
        target.mkdir()
        # when
        try:
            with no_longer():
                convert(check(path), target, lambda done, total: None)
        except ModelLoadError as fault:
            refusals.append(str(fault))
            path.unlink()
            shutil.rmtree(target)
            continue
        # then: the tensors lie where they lay, and were taken byte by byte
        accepted.append(path)
        assert read_header(path).tensors == sound.tensors
        info = sound.tensors["token_embd.weight"]
        stored = np.frombuffer(path.read_bytes(), "<f4", info.values, info.offset).reshape(info.shape)
        np.testing.assert_array_equal(load_file(target / "model.safetensors")["model.embed_tokens.weight"], stored)
        shutil.rmtree(target)
    assert len(refusals) > MUTANTS // 2
    assert [line for line in refusals if str(tmp_path) not in line or "\n" in line] == []
    # and: a native parser survives every file that the check lets through
    subprocess.run([sys.executable, "-c", LOAD_ALL, *map(str, accepted)], check=True, timeout=120 + MUTANTS)
