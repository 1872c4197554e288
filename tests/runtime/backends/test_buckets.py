"""Chains side by side in one forward: which go together, and that no answer changes by it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.backends.base import ROOT
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.backends.packs.chains import Bucket, ChainRow, compatible_groups, levels, padded_paths, spans
from runtime.backends.packs.tree import Int64, count_chains, segments
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import Loaded, append, chain, log_softmax

REAL = [(backend, name) for backend in ("hf", "mlx") for name in ("mamba", "lfm2", "falcon_h1")]
NOTHING = np.empty(0, np.int64)


# ---- which go together ------------------------------------------------------------------------------------------------


def row(past: int, new: int) -> ChainRow:
    return ChainRow(np.arange(new), past - 1, past, past - 1)


@given(st.lists(st.tuples(st.integers(0, 900), st.integers(1, 9)), min_size=1, max_size=12), st.booleans(), st.booleans())
def test_every_token_is_pushed_once_in_order_and_none_is_padding(
    sizes: list[tuple[int, int]], ragged: bool, stepwise: bool
) -> None:
    rows = [row(past, new) for past, new in sizes]
    pushed: dict[int, list[int]] = {id(each): [] for each in rows}
    for group in compatible_groups(rows, ragged=ragged):
        pasts = [each.past for each in group]
        assert len({past == 0 for past in pasts}) == 1
        assert max(pasts) <= max(2 * min(pasts), 256) if ragged else len(set(pasts)) == 1
        for start, stop, reaching in spans(group, stepwise=stepwise):
            assert reaching
            assert not stepwise or group[0].fresh or stop - start == 1
            for each in reaching:
                pushed[id(each)] += range(start, stop)
    assert list(pushed.values()) == [list(range(new)) for _, new in sizes]


@given(st.data())
def test_a_chain_comes_after_the_one_it_hangs_on(data: st.DataObject) -> None:
    base = data.draw(st.integers(0, 3))
    parents = np.array([data.draw(st.integers(-1, base + i - 1)) for i in range(data.draw(st.integers(1, 14)))])
    chains = segments(parents, base)
    done: set[int] = set(range(-1, base))
    for level in levels(chains, parents, base):
        assert all(int(parents[each[0]]) in done for each in level)
        done |= {base + int(i) for each in level for i in each}
    assert len(done) == 1 + base + len(parents)
    assert count_chains(parents - base) == len(chains)


def test_a_short_row_is_filled_with_a_slot_of_its_own() -> None:
    path, missing = padded_paths([np.array([2, 5, 8]), np.array([7])])
    assert path.tolist() == [[2, 5, 8], [7, 7, 7]]
    assert missing is not None
    assert missing.tolist() == [0, 2]
    ones = np.ones((2, 2), np.int64)
    seen = Bucket(ones, ones, ones, NOTHING, path, missing).visible(window=3)
    assert seen[0].astype(int).tolist() == [[0, 1, 1, 1, 0], [0, 0, 1, 1, 1]]
    assert seen[1].astype(int).tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 1]]


# ---- on the toy: how many forwards, and faults ------------------------------------------------------------------------


def toy(**behaviour: Any) -> tuple[FakeBackend, Any, list[int]]:
    """A recurrent toy, a pack with three rows of 4, 6 and 9 tokens, and where they end."""
    backend = FakeBackend(LoadOptions(), Behaviour(recurrent=True))
    pack = backend.open_pack()
    tips = [int(append(backend, pack, np.arange(n) + 10 * n)[0][-1]) for n in (4, 6, 9)]
    backend.behaviour = Behaviour(recurrent=True, **behaviour)
    backend.forwards = 0
    return backend, pack, tips


def under(backend: FakeBackend, pack: Any, tips: list[int], lengths: list[int]) -> Int64:
    ends = np.cumsum(lengths)
    starts = backend.size(pack) + ends - lengths
    return np.concatenate([chain(int(s), n, tip) for s, n, tip in zip(starts, lengths, tips, strict=True)])


def test_one_forward_for_every_different_length() -> None:
    widths: list[int] = []
    backend, pack, tips = toy(before_forward=lambda tokens: widths.append(len(tokens)))
    for lengths, expected in (([1, 1, 1], [3]), ([4, 4, 4], [12]), ([5, 1, 3], [3, 4, 2])):
        widths.clear()
        slots, _ = backend.forward(pack, np.arange(sum(lengths)), under(backend, pack, tips, lengths), NOTHING)
        tips = slots[np.cumsum(lengths) - 1].tolist()
        assert widths == expected
    assert backend.forwards == 5


def test_a_level_of_a_tree_goes_in_one_forward() -> None:
    # given a stem with two branches, one of which has two of its own
    backend, pack, (tip, *_) = toy()
    base = backend.size(pack)
    parents = np.array([tip, base, base, base + 1, base + 1, base + 2])
    tokens = np.array([1, 2, 3, 4, 5, 6])
    _, logits = backend.forward(pack, tokens, parents, np.arange(6))
    assert backend.forwards == 4  # the stem; 2 beside 3; 6 after it; 4 beside 5
    stem = [*range(40, 44), 1]
    for got, text in zip(logits, ([], [2], [3], [2, 4], [2, 5], [3, 6]), strict=True):
        np.testing.assert_allclose(got, backend.logits_uncached([*stem, *text]), atol=1e-5)


def test_copies_stay_within_what_was_lent() -> None:
    backend, pack, tips = toy()
    backend.widest_bytes = 128
    assert backend.copy_cost(pack, np.array(tips)) == 3 * backend.row_bytes(10)
    assert backend.copy_cost(pack, np.array(tips[:1])) == 0
    for lent, forwards in ((0, 3), (2 * backend.row_bytes(10), 2), (3 * backend.row_bytes(10), 1)):
        backend.lent, backend.forwards = lent, 0
        slots, logits = backend.forward(pack, np.array([7, 8, 9]), np.array(tips), np.arange(3))
        assert backend.forwards == forwards
        np.testing.assert_allclose(logits[1], backend.logits_uncached([*pack_text(6), 8]), atol=1e-5)
        backend.retain(pack, np.arange(int(slots[0])), np.array(tips))
        pack.states.update(states_after(backend, tips))


def pack_text(n: int) -> list[int]:
    return (np.arange(n) + 10 * n).tolist()


def states_after(backend: FakeBackend, tips: list[int]) -> dict[int, Any]:
    """The states that `toy` left, computed anew."""
    found = {}
    for n, tip in zip((4, 6, 9), tips, strict=True):
        pack = backend.open_pack()
        slots, _ = append(backend, pack, pack_text(n))
        found[tip] = pack.states[int(slots[-1])]
    return found


def test_a_failure_in_the_middle_leaves_the_pack_as_it_was() -> None:
    # given chains of 1, 2 and 3 tokens, when the second of three forwards fails
    backend, pack, tips = toy(raise_on={77: KeyboardInterrupt()})
    before = {slot: state.copy() for slot, state in pack.states.items()}
    tokens, parents = np.array([1, 2, 77, 3, 4, 5]), under(backend, pack, tips, [1, 2, 3])
    with pytest.raises(KeyboardInterrupt):
        backend.forward(pack, tokens, parents, np.arange(6))
    # then nothing of it is left, and the same without the guilty token works
    assert backend.forwards == 2
    assert backend.size(pack) == 19
    assert pack.states.keys() == before.keys()
    assert all((pack.states[slot] == state).all() for slot, state in before.items())
    tokens[2] = 78
    _, logits = backend.forward(pack, tokens, parents, np.arange(6))
    np.testing.assert_allclose(logits[2], backend.logits_uncached([*pack_text(6), 2, 78]), atol=1e-5)


def test_a_row_of_nan_stays_alone() -> None:
    backend, pack, tips = toy(nan_on=frozenset({8}))
    _, logits = backend.forward(pack, np.array([7, 8, 9]), np.array(tips), np.arange(3))
    assert np.isnan(logits[1]).all()
    assert np.isfinite(logits[[0, 2]]).all()


# ---- on real architectures --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=REAL, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded(*request.param)
    yield one
    one.backend.unload()


@pytest.mark.slow
def test_rows_side_by_side_are_rows_alone(loaded: Loaded) -> None:
    # given rows of different age, one of them from nothing, with tails of different length
    backend: Any = loaded.backend
    assert (backend.buckets, backend.ragged) == (True, True)
    texts = [loaded.ids(1, 12), loaded.ids(2, 3), loaded.ids(3, 20), NOTHING]
    tails = [loaded.ids(4, 3), loaded.ids(5, 3), loaded.ids(6, 1), loaded.ids(7, 4)]
    answers, counts = [], []
    for together in (True, False):
        backend.buckets = together
        pack = backend.open_pack()
        tips = [int(append(backend, pack, text)[0][-1]) if len(text) else ROOT for text in texts]
        counted = backend.forwards
        parents = under(backend, pack, tips, [len(tail) for tail in tails])
        slots, logits = backend.forward(pack, np.concatenate(tails), parents, np.arange(11))
        ends = slots[np.cumsum([len(tail) for tail in tails]) - 1]
        counts.append(backend.forwards - counted)
        # and one more token after each
        counted = backend.forwards
        _, more = backend.forward(pack, np.array([5, 6, 7, 8]), ends, np.arange(4))
        assert backend.forwards - counted == (1 if together else 4)
        answers.append(np.concatenate([log_softmax(logits), log_softmax(more)]))
    backend.buckets = True
    # then it makes no difference, to each other or to the library's own forward, but to the number of forwards
    np.testing.assert_allclose(answers[0], answers[1], atol=loaded.tolerance, rtol=0)
    whole = [np.concatenate([text, tail, [token]]) for text, tail, token in zip(texts, tails, (5, 6, 7, 8), strict=True)]
    for i, text in enumerate(whole):
        loaded.check(answers[0][11 + i : 12 + i], text, [-1])
    assert counts == ([4, 8] if backend.stepwise else [3, 4])


def test_what_stands_in_one_row_reaches_no_other(loaded: Loaded) -> None:
    # given two rows of different length, one of which is spoilt throughout
    backend: Any = loaded.backend
    pack = backend.open_pack()
    spoilt, _ = append(backend, pack, loaded.ids(1, 30))
    good, _ = append(backend, pack, loaded.ids(2, 9))
    spoil(pack, spoilt)
    _, logits = backend.forward(pack, np.array([5, 6]), np.array([spoilt[-1], good[-1]]), np.arange(2))
    assert np.isnan(logits[0]).any()
    loaded.check(log_softmax(logits[1:]), [*loaded.ids(2, 9), 6], [-1])


def spoil(pack: Any, slots: Int64) -> None:
    """NaN wherever the model keeps anything of these slots."""
    end = int(slots[-1])
    pack.states[end] = tuple(None if part is None else part * float("nan") for part in pack.states[end])
    with torch.inference_mode():  # where hf's buffers were made
        for layer in pack.attention:
            layer.keys[:, :, int(slots[0]) : end + 1] = float("nan")
            layer.values[:, :, int(slots[0]) : end + 1] = float("nan")


@pytest.mark.parametrize("failing", [1, 2])
def test_a_library_that_fails_half_way_costs_nothing(loaded: Loaded, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = loaded.backend
    pack = backend.open_pack()
    texts = [loaded.ids(1, 5), loaded.ids(2, 8)]
    tips = [int(append(backend, pack, text)[0][-1]) for text in texts]
    sound, calls = backend.model, iter(range(9))  # the library's side of the border

    def model(*args: Any, **kwargs: Any) -> Any:
        out = sound(*args, **kwargs)
        if next(calls) + 1 == failing:
            raise SystemExit
        return out

    with monkeypatch.context() as patched:
        patched.setattr(backend, "model", model)
        with pytest.raises(SystemExit):
            backend.forward(pack, np.array([1, 2, 3]), under(backend, pack, tips, [1, 2]), np.arange(3))
    assert backend.size(pack) == 13
    assert sorted(pack.states) == tips
    _, logits = backend.forward(pack, np.array([1, 2, 3]), under(backend, pack, tips, [1, 2]), np.arange(3))
    loaded.check(log_softmax(logits[:1]), [*texts[0], 1], [-1])
    loaded.check(log_softmax(logits[1:]), [*texts[1], 2, 3], [-2, -1])


@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_equal_rows_share_a_forward_where_trees_do_not_work(backend: str, name: str) -> None:
    loaded = Loaded(backend, name)
    one: Any = loaded.backend
    one.tree = one.ragged = False  # as the self-test leaves a library that breaks masks
    pack = one.open_pack()
    texts = [loaded.ids(1, 20), loaded.ids(2, 20), loaded.ids(3, 7)]
    tips = [int(append(one, pack, text)[0][-1]) for text in texts]
    tails, counted = [loaded.ids(4, 5), loaded.ids(5, 2), loaded.ids(6, 2)], one.forwards
    _, logits = one.forward(pack, np.concatenate(tails), under(one, pack, tips, [5, 2, 2]), np.array([4, 6, 8]))
    assert one.forwards - counted == 3  # two tokens of the equal ones, the rest of one, the third row
    for got, text, tail in zip(log_softmax(logits), texts, tails, strict=True):
        loaded.check(got[None], [*text, *tail], [-1])
    one.unload()
