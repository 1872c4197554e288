"""The load-time self-test: wrong ways of pushing tokens are found, switched off and reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime.backends import selftest
from runtime.backends.base import ROOT
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.backends.packs.chains import Bucket
from runtime.backends.packs.tree import ForwardStep
from runtime.backends.selftest import prove, self_test
from runtime.backends.toy import ToyPack
from runtime.errors import ModelLoadError
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import Loaded, append, chain, log_softmax


class Spoilt(FakeBackend):
    """A library whose steps are changed by `spoil`, so that it computes something wrong."""

    def spoil(self, step: ForwardStep) -> None: ...

    def push(self, pack: ToyPack, step: ForwardStep) -> Any:
        self.spoil(step)
        return super().push(pack, step)

    def launch(self, packs: Sequence[ToyPack], steps: Sequence[ForwardStep], *rest: Any) -> Any:
        for step in steps:
            self.spoil(step)
        return super().launch(packs, steps, *rest)


class Leaky(Spoilt):
    """A library in which every token of a tree sees all earlier slots."""

    def spoil(self, step: ForwardStep) -> None:
        if step.mask is not None:
            step.mask[:] = np.arange(step.mask.shape[1]) <= step.slots[:, None]


class Forgetful(Spoilt):
    """A library in which a chain continues at the wrong position."""

    def spoil(self, step: ForwardStep) -> None:
        if step.positions[0]:
            step.positions[:] += 1


class ShortPieces(Spoilt):
    """A library in which a chain continues at the wrong position if the call is longer than a window."""

    window = 24

    def spoil(self, step: ForwardStep) -> None:
        if step.positions[0] and len(step.tokens) > self.window:
            step.positions[:] += 1


class OneByOne(FakeBackend):
    """A library that loses the recurrent state when more than one token follows, as some do."""

    def push(self, pack: ToyPack, step: ForwardStep) -> Any:
        if len(step.tokens) > 1 and step.state is not None:
            step.state[:] = 0
        return super().push(pack, step)


class Mixing(FakeBackend):
    """Swaps the states of rows of one forward; without `even_too`, only of rows over pasts of different length."""

    even_too = True

    def push_rows(self, pack: ToyPack, bucket: Bucket) -> Any:
        if bucket.states is not None and (self.even_too or bucket.missing is not None):
            bucket = replace(bucket, states=[*bucket.states[1:], bucket.states[0]])
        return super().push_rows(pack, bucket)


class NoBatches(FakeBackend):
    """A library that cannot push rows."""

    def push_rows(self, pack: ToyPack, bucket: Bucket) -> Any:
        raise ValueError("a batch of one, please")


class KeepsItInside(FakeBackend):
    """A model that keeps its recurrent state inside from call to call, for all packs."""

    inside: Any = None

    def push(self, pack: ToyPack, step: ForwardStep) -> Any:
        if step.state is not None:
            step = replace(step, state=self.inside)
        logits, self.inside = super().push(pack, step)
        return logits, self.inside


class NoSharing(FakeBackend):
    """A library that raises for rows with a shared prefix or, without `told`, computes them wrongly."""

    shares, told = True, True

    def push_rows(self, pack: ToyPack, bucket: Bucket) -> Any:
        if bucket.shared is None:
            return super().push_rows(pack, bucket)
        if self.told:
            raise ValueError("keys and queries differ in their rows")
        logits, states = super().push_rows(pack, bucket)
        return np.roll(logits, 1, axis=0), states


def test_a_sound_backend_passes_without_a_warning() -> None:
    backend = FakeBackend(LoadOptions(), Behaviour())
    assert self_test(backend) == ()
    assert backend.tree


def test_a_broken_tree_mode_falls_back_to_chains_with_a_warning() -> None:
    backend = Leaky(LoadOptions(), Behaviour())
    (warning,) = self_test(backend)
    assert not backend.tree
    assert "one by one" in warning
    # and a branching call is right again
    pack = backend.open_pack()
    append(backend, pack, [1, 2, 3])
    _, logits = backend.forward(pack, np.array([4, 5]), np.array([2, 0]), np.arange(2))
    for row, text in zip(logits, ([1, 2, 3, 4], [1, 5]), strict=True):
        np.testing.assert_allclose(row, backend.logits_uncached(text), atol=1e-6)


def test_logits_do_not_stay_on_a_device_whose_library_breaks_masks() -> None:
    backend = Leaky(LoadOptions(), Behaviour(overlaps=True))
    backend.together = backend.on_device = True
    prove(backend, ())
    assert (backend.tree, backend.together, backend.on_device) == (False, False, False)


def test_a_model_with_wrong_numbers_in_a_chain_is_refused() -> None:
    backend = Forgetful(LoadOptions(), Behaviour())
    sound = FakeBackend(LoadOptions(), Behaviour())
    backend.logits_uncached = sound.logits_uncached  # type: ignore[method-assign]  # a sound library
    with pytest.raises(ModelLoadError, match="nats apart with and without a cache"):
        self_test(backend)


def test_calls_longer_than_a_window_are_tested() -> None:
    backend = ShortPieces(LoadOptions(), Behaviour())
    with pytest.raises(ModelLoadError, match="nats apart with and without a cache"):
        self_test(backend, (backend.window, 2 * backend.window))
    # and where only longer calls are wrong, texts are pushed one by one
    backend.window = 2 * backend.window
    (warning,) = self_test(backend, (backend.window - 5,))
    assert not backend.tree
    assert "one by one" in warning


def test_recurrent_state_that_does_not_survive_chunks_is_carried_token_by_token() -> None:
    backend = OneByOne(LoadOptions(), Behaviour(recurrent=True))
    (warning,) = self_test(backend)
    assert backend.stepwise
    assert "one token at a time" in warning


def test_rows_that_disturb_each_other_are_pushed_one_by_one() -> None:
    backend = Mixing(LoadOptions(), Behaviour(recurrent=True))
    (warning,) = self_test(backend)
    assert not backend.buckets
    assert "one by one" in warning
    check_rows_of(backend)


def test_rows_over_pasts_of_different_length_are_separated_if_they_disturb_each_other() -> None:
    backend = Mixing(LoadOptions(), Behaviour(recurrent=True))
    backend.even_too = False
    (warning,) = self_test(backend)
    assert (backend.buckets, backend.ragged) == (True, False)
    assert "equal length" in warning
    check_rows_of(backend)


def test_a_library_that_fails_for_batches_is_pushed_one_row_at_a_time() -> None:
    backend = NoBatches(LoadOptions(), Behaviour(recurrent=True))
    (warning,) = self_test(backend)
    assert not backend.buckets
    assert "ValueError: a batch of one, please" in warning
    check_rows_of(backend)


@pytest.mark.parametrize("told", [True, False])
def test_the_prefix_is_copied_for_libraries_that_cannot_share_it(told: bool) -> None:
    backend = NoSharing(LoadOptions(), Behaviour(recurrent=True))
    backend.told = told
    (warning,) = self_test(backend)
    assert (backend.shares, backend.buckets, backend.ragged) == (False, True, True)
    assert "prefix copied" in warning
    assert ("keys and queries differ" if told else "nats apart") in warning
    assert backend.masked_per_copy == FakeBackend.masked_per_copy
    check_rows_of(backend)


def test_a_model_that_keeps_its_state_inside_is_refused() -> None:
    backend = KeepsItInside(LoadOptions(), Behaviour(recurrent=True))
    with pytest.raises(ModelLoadError, match="nats apart with and without a cache"):
        self_test(backend)


@pytest.mark.slow
def test_recurrent_gemma_of_transformers_is_refused() -> None:
    with pytest.raises(ModelLoadError, match="this architecture is not supported"):
        Loaded("hf", "recurrent_gemma")


def check_rows_of(backend: FakeBackend) -> None:
    """Checks two rows with pasts of different length, pushed in one call."""
    pack = backend.open_pack()
    append(backend, pack, [1, 2, 3])
    append(backend, pack, [4, 5])
    _, logits = backend.forward(pack, np.array([6, 7]), np.array([2, 4]), np.arange(2))
    for row, text in zip(logits, ([1, 2, 3, 6], [4, 5, 7]), strict=True):
        np.testing.assert_allclose(row, backend.logits_uncached(text), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "gemma3", "mistral", "gpt2"])
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_model_without_tree_mode_gives_the_same_numbers(backend: str, name: str) -> None:
    # given a model without tree mode, when branches of different length grow in one call past the window
    loaded = Loaded(backend, name)
    loaded.backend.tree = False
    pack = loaded.backend.open_pack()
    stem, left, right = loaded.ids(1, 22), loaded.ids(2, 6), loaded.ids(3, 4)
    append(loaded.backend, pack, stem)
    parents = np.concatenate([chain(22, 6, 21), chain(28, 4, 10), [ROOT]])
    tokens = np.concatenate([left, right, [7]])
    slots, logits = loaded.backend.forward(pack, tokens, parents, np.array([5, 9, 10]))
    # then every tip equals its path alone, and a branch can be continued
    got = log_softmax(logits)
    loaded.check(got[:1], [*stem, *left], [-1])
    loaded.check(got[1:2], [*stem[:11], *right], [-1])
    loaded.check(got[2:], [7], [-1])
    _, more = append(loaded.backend, pack, stem[:3], int(slots[9]))
    loaded.check(more, [*stem[:11], *right, *stem[:3]], slice(15, None))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "broken"), [("hf", "hf.forward.ForwardArguments._mask"), ("mlx", "mlx.masks.TreeMasks.of")]
)
def test_a_library_that_ignores_masks_is_detected_at_load(backend: str, broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    module, owner, method = f"runtime.backends.{broken}".rsplit(".", 2)
    cls = getattr(importlib.import_module(module), owner)
    sound = getattr(cls, method)
    monkeypatch.setattr(cls, method, lambda self, mask, **how: sound(self, mask, **how) | True)
    monkeypatch.setattr(selftest, "proofs", {})
    loaded = Loaded(backend, "llama")
    assert any("one by one" in warning for warning in loaded.backend.info.warnings)
    assert loaded.backend.info.capabilities == ()
