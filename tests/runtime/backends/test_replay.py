"""Decoding through recordings of the model's forward: the same numbers to the bit, or none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from runtime.adapters.stacks import TokenStacks
from runtime.backends.base import ROOT
from runtime.backends.hf import recording, replay
from runtime.backends.hf.backend import HfBackend, load
from runtime.backends.hf.cache import SlotLayer, TorchPack
from runtime.backends.packed import Step
from runtime.options import LoadOptions
from tests.runtime.backends.recorded import (
    ALONE,
    ALONE_IN_A_TREE,
    TREE,
    branched,
    decoded,
    in_force,
    rest,
    spoil,
    without,
)
from tests.runtime.backends.reference import TOLERANCE, append, expected, log_softmax, random_ids
from tests.tiny_models import tiny_folder, tiny_path, tiny_tokenizer

RECORDED = [("llama", "auto"), ("gpt2", "auto"), ("gemma3", "auto")]
SLOWLY = [("qwen3", "auto"), ("mistral", "auto"), ("llama", "eager"), ("gemma3", "eager")]


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "AFTER", 2)
    monkeypatch.setattr(replay, "SHARE", 1.0)


@pytest.fixture
def backend() -> Iterator[HfBackend]:
    made = load(tiny_folder("llama"), LoadOptions())
    yield made
    made.unload()


@pytest.mark.parametrize(("name", "attention"), [*RECORDED, *(pytest.param(*each, marks=pytest.mark.slow) for each in SLOWLY)])
def test_what_is_recorded_gives_the_models_own_numbers(name: str, attention: Any) -> None:
    # given one backend that records and one that does not
    ours, plain = load(tiny_folder(name), LoadOptions(attention=attention)), without(name, attention=attention)
    packs = [each.open_pack() for each in (ours, plain)]
    for each, pack in zip((ours, plain), packs, strict=True):
        append(each, pack, random_ids(1, 50))  # with what follows more than gemma3's window
    # when both decode a stream, and then branches: three, two, three, one
    for seed, rows in enumerate((0, 3, 2, 3, 1), 2):
        got, known = (
            branched(each, pack, seed, 8, rows) if rows else decoded(each, pack, seed, 40)
            for each, pack in zip((ours, plain), packs, strict=True)
        )
        # then nobody can tell which is which
        assert np.array_equal(got, known)
    looks_for_padding = name == "gpt2"  # at the token itself, where no mask is given
    assert in_force(ours) == ({ALONE_IN_A_TREE, TREE} if looks_for_padding else {ALONE, ALONE_IN_A_TREE, TREE})
    slots = np.arange(50, 90)
    taken = [each.export(each.take(pack, slots)) for each, pack in zip((ours, plain), packs, strict=True)]
    assert all(np.array_equal(taken[0][key], taken[1][key]) for key in taken[1])


def test_a_recording_serves_every_pack_whatever_its_length(backend: HfBackend) -> None:
    # given a recording that was made in one pack
    first = backend.open_pack()
    append(backend, first, random_ids(1, 5))
    decoded(backend, first, 2, 10)
    assert in_force(backend) == {ALONE}
    # when another one is decoded, cut back, grown, thinned out and decoded again
    pack, ids = backend.open_pack(), random_ids(3, 40)
    append(backend, pack, ids)
    decoded(backend, pack, 4, 7)
    backend.truncate(pack, 30)
    backend.resize(pack, 200)
    backend.retain(pack, np.arange(25), np.array([24]))
    got = decoded(backend, pack, 5, 3)
    # then the numbers are those of the path
    path = [*ids[:25].tolist(), *random_ids(5, 3).tolist()]
    np.testing.assert_allclose(log_softmax(got[-1]), expected("llama", path)[-1], atol=TOLERANCE)


def test_a_model_that_decides_by_its_numbers_is_not_recorded(backend: HfBackend) -> None:
    # given a layer that computes something else where its input is large, as a mixture of experts does
    norm = backend._model.model.norm
    own: Callable[[torch.Tensor], torch.Tensor] = norm.forward
    norm.forward = lambda x: own(x) * 2 if float(x.sum()) > 0 else own(x)
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    decoded(backend, pack, 2, 20)
    assert in_force(backend) == set()


@pytest.mark.parametrize("fault", ["cannot record", "cannot replay", "cannot replay later", "other numbers"])
def test_a_wrong_recording_is_never_heard(backend: HfBackend, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    # given a torch that cannot record, or whose recordings fail, or give other numbers
    def trace(*_: Any) -> Any:
        raise RuntimeError(fault)

    def broken(given: recording.Given) -> bool:
        if fault == "cannot replay" or given[4].shape[2] > 5:
            raise RuntimeError(fault)
        return False

    if fault == "cannot record":
        monkeypatch.setattr(recording, "traced", trace)
    else:
        spoil(monkeypatch, broken if fault.startswith("cannot replay") else lambda _: True)
    plain = without("llama")
    packs = [each.open_pack() for each in (backend, plain)]
    for each, pack in zip((backend, plain), packs, strict=True):
        append(each, pack, random_ids(1, 5))
    got, known = (decoded(each, pack, 2, 12) for each, pack in zip((backend, plain), packs, strict=True))
    assert np.array_equal(got, known)
    assert in_force(backend) == set()


def test_longer_paths_than_were_compared_are_compared_first(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a recording that is wrong from 40 tokens on
    spoil(monkeypatch, lambda given: given[4].shape[2] > 40)
    pack, ids = backend.open_pack(), random_ids(1, 10)
    append(backend, pack, ids)
    # when a stream comes to 30 tokens, and goes on to 60
    decoded(backend, pack, 2, 20)
    assert in_force(backend) == {ALONE}
    got = decoded(backend, pack, 3, 30)
    # then it is relied on for the shorter paths only
    path = [*ids.tolist(), *random_ids(2, 20).tolist(), *random_ids(3, 30).tolist()]
    np.testing.assert_allclose(log_softmax(got), expected("llama", path)[30:], atol=TOLERANCE)
    assert in_force(backend) == {ALONE}


def test_another_number_of_rows_is_compared_first(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a recording of trees that is wrong for other than two rows
    spoil(monkeypatch, lambda given: given[0].shape[1] > 2)
    plain = without("llama")
    packs = [each.open_pack() for each in (backend, plain)]
    for each, pack in zip((backend, plain), packs, strict=True):
        append(each, pack, random_ids(1, 10))
        branched(each, pack, 2, 10, 2)
    assert in_force(backend) == {TREE}
    got, known = (branched(each, pack, 3, 5, 4) for each, pack in zip((backend, plain), packs, strict=True))
    assert np.array_equal(got, known)
    assert in_force(backend) == {TREE}  # for two


def test_what_is_computed_to_compare_is_counted(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a watch over what goes through the model, and through what was recorded of it
    computed: list[int] = []
    own, run, real = backend._logits, recording.run, recording.traced

    def by_model(pack: TorchPack, step: Step) -> torch.Tensor:
        computed.append(len(step.tokens))
        return own(pack, step)

    def by_recording(recorded: recording.Forward, arguments: tuple[torch.Tensor, ...]) -> torch.Tensor:
        computed.append(arguments[0].numel())
        return run(recorded, arguments)

    def trace(model: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> Any:
        computed.append(inputs[0].numel())
        return real(model, inputs)

    monkeypatch.setattr(backend, "_logits", by_model)
    monkeypatch.setattr(recording, "run", by_recording)
    monkeypatch.setattr(recording, "traced", trace)
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    computed.clear()
    forwards, pushed = backend.forwards, backend.pushed
    # when a stream is decoded, and then three
    decoded(backend, pack, 2, 20)
    branched(backend, pack, 3, 10, 3)
    assert in_force(backend) == {ALONE, TREE}
    # then all of it was counted, and not only what was asked for
    assert (backend.forwards - forwards, backend.pushed - pushed) == (len(computed), sum(computed))
    assert sum(computed) > 20 + 10 * 3


def test_little_is_computed_to_compare(backend: HfBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    # given the share of it that a user pays for
    monkeypatch.setattr(replay, "SHARE", 0.1)
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    pushed = backend.pushed
    # when branches are decoded, of ever other numbers, each of which would have to be compared
    for rows in range(12, 2, -1):
        branched(backend, pack, rows, 5, rows)
    # then no more than the share is, but some of it
    asked = 5 * sum(range(3, 13))
    assert 0 < backend.pushed - pushed - asked <= replay._AT_ONCE + asked / 10


def test_a_token_without_numbers_says_nothing_of_a_recording(monkeypatch: pytest.MonkeyPatch, backend: HfBackend) -> None:
    # given a recording that is relied on, and a token whose logits are no numbers where it would be compared again
    with torch.no_grad():
        backend._model.model.embed_tokens.weight[999] = float("nan")
    pack, ids = backend.open_pack(), np.arange(3, 60)
    append(backend, pack, ids[:5])
    for size in range(5, 12):
        append(backend, pack, ids[size : size + 1], size - 1)
        rest(backend)
    assert in_force(backend) == {ALONE}
    append(backend, pack, ids[12:50], 11)
    with np.errstate(invalid="ignore"):
        _, logits = backend.forward(pack, np.array([999]), np.array([49]), np.array([0]))
    assert not np.isfinite(logits).any()
    backend.truncate(pack, 50)
    # when it is gone, and others come to that place
    own: list[Step] = []
    model = backend._logits

    def watched(pack: TorchPack, step: Step) -> torch.Tensor:
        own.append(step)
        return model(pack, step)

    monkeypatch.setattr(backend, "_logits", watched)
    for size in range(50, 55):
        append(backend, pack, ids[size : size + 1], size - 1)
    # then the first is compared, and the recording is relied on from there
    assert [step.past for step in own] == [50]


def test_a_layer_that_has_computed_nothing_yet_is_left_to_the_model(backend: HfBackend) -> None:
    # given a pack one of whose layers has no buffers
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5))
    pack.attention.insert(0, SlotLayer())
    assert np.isfinite(decoded(backend, pack, 2, 5)).all()


def test_only_what_decoding_pushes_is_recorded() -> None:
    one, two = np.zeros(1, np.int64), np.zeros(2, np.int64)
    mask = np.ones((2, 2), np.bool_)
    stacks = TokenStacks.uniform((("digest", 1.0),), 1)
    assert Step(one, one, one, one).decodes
    assert Step(two, two, two, two, mask=mask).decodes
    assert not Step(two, two, two, two).decodes  # a part of a prompt
    assert not Step(two, two, two, one, mask=mask).decodes
    assert not Step(one, one, one, one, path=one).decodes
    assert not Step(one, one, one, one, hidden=True).decodes
    assert not Step(one, one, one, one, stacks=stacks).decodes


def test_nothing_is_recorded_of_a_callers_model_a_recurrent_one_or_packed_weights() -> None:
    # given models whose modules somebody else may change, whose cache is another one, whose weights are no tensors
    model = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32)
    theirs = load((model, tiny_tokenizer()), LoadOptions())
    recurrent = load(tiny_folder("mamba"), LoadOptions())
    packed = load(tiny_folder("llama"), LoadOptions(weights="int8"))
    assert theirs._replay is None
    assert recurrent._replay is None
    assert packed._replay is None


def test_a_short_answer_pays_for_no_recording(monkeypatch: pytest.MonkeyPatch, backend: HfBackend) -> None:
    monkeypatch.setattr(replay, "AFTER", 30)

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(recording, "traced", never)
    pack = backend.open_pack()
    append(backend, pack, random_ids(1, 5), ROOT)
    decoded(backend, pack, 2, 29)
    assert backend._replay is not None
    assert not backend._replay.kinds[ALONE].in_force
