"""What tests of recordings share: decoding by hand, and rests in between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from runtime.backends.hf import recording
from runtime.backends.hf.backend import HfBackend, load
from runtime.backends.hf.cache import TorchPack
from runtime.options import LoadOptions
from tests.runtime.backends.reference import Float32, append, random_ids
from tests.tiny_models import tiny_folder

ALONE, ALONE_IN_A_TREE, TREE = (False, True), (True, True), (True, False)  # masked, one token alone


def without(name: str, **options: Any) -> HfBackend:
    """A backend that records nothing."""
    plain = load(tiny_folder(name), LoadOptions(**options))
    plain._replay = None
    return plain


def nobody() -> bool:
    """Whether somebody asks for something."""
    return False


def rest(backend: HfBackend) -> None:
    """Nobody waits for anything for so long as there is something to do."""
    while backend.due:
        backend.rest(nobody)


def decoded(backend: HfBackend, pack: TorchPack, seed: int, n: int) -> Float32:
    """The logits of `n` random tokens, pushed one at a time at the end of a chain."""

    def one(token: int) -> Float32:
        _, logits = backend.forward(pack, np.array([token]), np.array([pack.tree.size - 1]), np.array([0]))
        rest(backend)
        return logits.squeeze(0)  # (vocab,)

    return np.stack([one(token) for token in random_ids(seed, n).tolist()])


def branched(backend: HfBackend, pack: TorchPack, seed: int, n: int, rows: int) -> Float32:
    """`rows` branches from the pack's last slot, which grow by a token each in `n` forwards."""
    parents, answers = np.full(rows, pack.tree.size - 1), []
    for ids in random_ids(seed, n * rows).reshape(n, rows):
        parents, logits = backend.forward(pack, ids, parents, np.arange(rows))
        rest(backend)
        answers.append(logits)
    return np.stack(answers)


def spoil(monkeypatch: pytest.MonkeyPatch, wrong: Callable[[recording.Given], bool]) -> None:
    """Recordings give other numbers for some of what they are given."""
    real = recording.compiled

    def compiled(graph: Any) -> Any:
        made = real(graph)

        def forward(*given: torch.Tensor) -> Any:
            answer = made(*given)
            return answer + 1 if isinstance(answer, torch.Tensor) and wrong(given) else answer

        return forward

    monkeypatch.setattr(recording, "compiled", compiled)


def in_force(backend: HfBackend) -> set[tuple[bool, bool]]:
    assert backend._replay is not None
    return {kind for kind, recording in backend._replay.kinds.items() if recording.in_force}


def push(backend: HfBackend, pack: TorchPack, n: int, rows: int = 1) -> None:
    """Decodes `n` tokens of each of `rows` branches, with no rest in between."""
    parents = np.full(rows, pack.tree.size - 1)
    for ids in random_ids(n, n * rows).reshape(n, rows):
        parents, _ = backend.forward(pack, ids, parents, np.arange(rows))


def begun(backend: HfBackend) -> TorchPack:
    pack: TorchPack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    return pack
