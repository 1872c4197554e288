"""Rows of a model with attention and recurrent layers share one KV: which slots each row sees, and what is copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from runtime.backends.base import ROOT
from runtime.backends.hf.cache import Placement, SlotLayer
from runtime.backends.packs.chains import UNBOUNDED, Bucket, Shared, worth_sharing
from runtime.backends.packs.tree import Int64, SlotTree
from tests.runtime.backends.reference import Float32, Loaded, append, chain, log_softmax

FULL = [(backend, name) for backend in ("hf", "mlx") for name in ("lfm2", "falcon_h1")]
CASES = [*FULL, ("hf", "zaya"), pytest.param(("mlx", "recurrent_gemma"), marks=pytest.mark.slow)]  # with sliding windows
WAYS = [("shared", 0), ("shared", 1), ("copied", 1), ("weighed", 2)]


class OwnNumbers(Loaded):
    """Uses the library's own plain forward as reference: without a cache, mlx-lm's recurrent_gemma is 2e-4 off."""

    def expected(self, ids: Sequence[int]) -> Float32:
        backend: Any = self.backend
        backend._select.rows = None  # noqa: SLF001  # the library's own head, which our choice of rows wraps
        return log_softmax(np.array(backend.model(mx.array([ids]))[0]))


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = (OwnNumbers if "recurrent_gemma" in request.param else Loaded)(*request.param)
    yield one
    one.backend.unload()


@pytest.fixture(autouse=True)
def unchanged(loaded: Loaded) -> Iterator[None]:
    backend: Any = loaded.backend
    masked_per_copy = backend.masked_per_copy
    yield
    backend.shares, backend.masked_per_copy = True, masked_per_copy


def go(loaded: Loaded, way: str) -> None:
    """Sets whether rows share the KV of the pack: always ("shared"), never ("copied"), or by cost ("weighed")."""
    backend: Any = loaded.backend
    backend.shares = way != "copied"
    backend.masked_per_copy = float("inf") if way == "shared" else type(backend).masked_per_copy


def watched(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[Bucket]:
    """A list of the buckets that are pushed from now on."""
    seen: list[Bucket] = []
    push = backend.push_rows

    def push_rows(pack: Any, bucket: Bucket) -> Any:
        seen.append(bucket)
        return push(pack, bucket)

    monkeypatch.setattr(backend, "push_rows", push_rows)
    return seen


def spoil_unused(backend: Any, pack: Any) -> None:
    """Fills the unused slots with NaN, as uninitialised memory may hold."""
    size = backend.size(pack)
    backend.resize(pack, size + 64)
    with torch.inference_mode():
        for layer in pack.attention:
            layer.keys[:, :, size:] = float("nan")
            layer.values[:, :, size:] = float("nan")


@pytest.mark.slow
def test_sharing_is_enabled_without_warnings(loaded: Loaded) -> None:
    backend: Any = loaded.backend
    assert (backend.shares, backend.buckets, backend.ragged, backend.stepwise) == (True, True, True, False)
    assert not [warning for warning in backend.info.warnings if "not compared" not in warning]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("way", "seed"), WAYS)
def test_rows_that_join_leave_and_branch_equal_each_text_alone(loaded: Loaded, way: str, seed: int) -> None:
    # given a stem in a pack whose unused slots hold NaN
    go(loaded, way)
    backend, rng = loaded.backend, np.random.default_rng(seed)
    pack, stem = backend.open_pack(), loaded.ids(seed, 24).tolist()
    slots, _ = append(backend, pack, stem)
    backend.take(pack, slots)  # keeps its state, for later branches
    live: list[tuple[int, list[int]]] = [(int(slots[-1]), stem)] * 2
    for _ in range(7):
        # when rows continue with tails of any length, some from the same slot, some from none, in any order
        if rng.random() < 0.3:
            live.append((ROOT, []))
        if rng.random() < 0.4:
            live.append((int(slots[-1]), stem))
        if len(live) > 3 and rng.random() < 0.5:
            live.pop(int(rng.integers(len(live))))
        tails = [loaded.ids(int(rng.integers(999)), int(n)) for n in rng.choice([1, 1, 1, 2, 5], len(live))]
        spoil_unused(backend, pack)
        base, parents, ends = backend.size(pack), np.empty(0, np.int64), []
        order = interleaved(rng, [len(tail) for tail in tails])
        tips = [tip for tip, _ in live]
        places: list[int] = []
        for row in order:
            parents = np.append(parents, tips[row])
            tips[row] = base + len(places)
            places.append(row)
        taken = [iter(tail.tolist()) for tail in tails]
        tokens = np.array([next(taken[row]) for row in order])
        ends = [tip - base for tip in tips]
        want = np.array(sorted(ends))
        new, logits = backend.forward(pack, tokens, parents, want)
        # then each row equals its text alone
        live = [(int(new[end]), [*text, *tail.tolist()]) for end, (_, text), tail in zip(ends, live, tails, strict=True)]
        for end, (_, text) in zip(ends, live, strict=True):
            loaded.check(log_softmax(logits[np.searchsorted(want, end)][None]), text, [-1])
    backend.close(pack)


def interleaved(rng: np.random.Generator, lengths: list[int]) -> list[int]:
    """The row of each token in the call: one row after the other, or in random order."""
    rows = [row for row, length in enumerate(lengths) for _ in range(length)]
    return rows if rng.random() < 0.5 else [int(row) for row in rng.permutation(rows)]


def test_a_tree_of_chains_in_one_call_equals_each_path_alone(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a stem, and a call in which the children of the first chain come before the second chain
    go(loaded, "shared")
    backend, pack, stem = loaded.backend, loaded.backend.open_pack(), loaded.ids(1, 20)
    slots, _ = append(backend, pack, stem)
    spoil_unused(backend, pack)
    tip, tokens = int(slots[-1]), loaded.ids(2, 8)
    parents = np.array([tip, 20, 21, 21, 23, tip, 25, 26])
    seen = watched(backend, monkeypatch)
    _, logits = backend.forward(pack, tokens, parents, np.arange(8))
    for i, path in enumerate(([0], [0, 1], [0, 1, 2], [0, 1, 3], [0, 1, 3, 4], [5], [5, 6], [5, 6, 7])):
        loaded.check(log_softmax(logits[i : i + 1]), [*stem, *tokens[path]], [-1])
    # and all rows are pushed with the shared KV
    assert [bucket.tokens.shape for bucket in seen] == [(2, 2), (1, 1), (2, 1), (1, 1)]
    assert all(bucket.shared is not None for bucket in seen)


def test_the_last_remaining_row_copies_nothing(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    # given branches of one stem, of which only one continues
    backend: Any = loaded.backend
    pack, stem = backend.open_pack(), loaded.ids(1, 60).tolist()
    slots, _ = append(backend, pack, stem)
    tips, _ = backend.forward(pack, np.arange(3), np.full(3, slots[-1]), np.empty(0, np.int64))
    seen = watched(backend, monkeypatch)
    # when it continues, by one token or several per call
    tip, text = int(tips[0]), [*stem, 0]
    for tail in ([7], [8], [9, 10, 11], [12]):
        new, got = append(backend, pack, tail, tip)
        tip, text = int(new[-1]), [*text, *tail]
        loaded.check(got, text, slice(-len(tail), None))
    assert [bucket.path.size for bucket in seen] == [0] * 4
    assert all(bucket.shared is not None for bucket in seen)


@pytest.mark.slow
def test_tails_of_different_length_take_a_forward_each_without_padding(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    # given 12 queries over 300 tokens, with tails of 1 to 4
    backend: Any = loaded.backend
    lengths = [1, 2, 3, 4] * 3
    copied: dict[str, list[int]] = {}
    for way in ("copied", "shared"):
        go(loaded, way)
        pack = backend.open_pack()
        slots, _ = append(backend, pack, loaded.ids(1, 300))
        starts = 300 + np.cumsum([0, *lengths[:-1]])
        parents = np.concatenate([chain(int(s), n, int(slots[-1])) for s, n in zip(starts, lengths, strict=True)])
        with monkeypatch.context() as patched:
            seen = watched(backend, patched)
            forwards, pushed = backend.forwards, backend.pushed
            backend.forward(pack, loaded.ids(2, 30), parents, np.cumsum(lengths) - 1)
        assert (backend.forwards - forwards, backend.pushed - pushed) == (4, 30)
        copied[way] = [bucket.path.size for bucket in seen]
    assert copied == {"copied": [12 * 300, 9 * 301, 6 * 302, 3 * 303], "shared": [0] * 4}


def test_the_copy_cost_covers_states_and_copied_rows(loaded: Loaded) -> None:
    backend: Any = loaded.backend
    pack = backend.open_pack()
    slots, _ = append(backend, pack, loaded.ids(1, 100))
    state = backend.row_bytes(0)
    assert state == backend.state_bytes
    assert backend.copy_cost(pack, np.full(8, slots[-1])) == 8 * state
    assert backend.copy_cost(pack, np.array([slots[-1], slots[-1], ROOT])) == 2 * state + backend.row_bytes(1)
    go(loaded, "copied")
    assert backend.copy_cost(pack, np.full(8, slots[-1])) == 8 * backend.row_bytes(101)


@pytest.mark.slow
def test_rows_that_share_kv_are_limited_by_their_states_only(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    backend: Any = loaded.backend
    pack, stem = backend.open_pack(), loaded.ids(1, 100)
    slots, _ = append(backend, pack, stem)
    spoil_unused(backend, pack)
    with monkeypatch.context() as patched:
        patched.setattr(backend, "lent", 3 * backend.row_bytes(0))
        forwards = backend.forwards
        _, logits = backend.forward(pack, np.arange(8), np.full(8, slots[-1]), np.arange(8))
        assert backend.forwards - forwards == 3
    for token, row in enumerate(log_softmax(logits)):
        loaded.check(row[None], [*stem, token], [-1])


# ---- copies made by a decoded token -------------------------------------------------------------------------------------


class Made(TorchDispatchMode):  # type: ignore[misc]  # torch is not followed by mypy
    """Records the largest new storage that a torch operation returns, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        held = {a.untyped_storage().data_ptr() for a in tree_leaves((args, kwargs)) if isinstance(a, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in held:
                self.most = max(self.most, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def most_made(backend: Any, pack: Any, tips: Int64) -> int:
    """For one token per row: on hf the elements of the largest new array, on mlx the bytes of the peak memory increase."""
    if backend.info.backend == "hf":
        with Made() as made:
            backend.forward(pack, np.arange(len(tips)), tips, np.empty(0, np.int64))
        return int(made.most)
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    backend.forward(pack, np.arange(len(tips)), tips, np.empty(0, np.int64))
    return int(mx.get_peak_memory()) - before


@pytest.mark.slow
@pytest.mark.parametrize("loaded", FULL, ids="-".join, indirect=True, scope="module")
def test_decoding_a_token_does_not_copy_the_context(loaded: Loaded) -> None:
    # given eight rows over a short and a long prefix, and buffers with room
    backend: Any = loaded.backend
    made: dict[str, list[int]] = {"shared": [], "copied": []}
    for way, found in made.items():
        for length in (200, 800):
            go(loaded, way)
            pack = backend.open_pack()
            slots, _ = append(backend, pack, loaded.ids(1, length))
            backend.resize(pack, length + 64)
            tips, _ = backend.forward(pack, np.arange(8), np.full(8, slots[-1]), np.empty(0, np.int64))
            # when each row gets one more token
            found.append(most_made(backend, pack, tips))
            backend.close(pack)
    # then temporary memory grows at most with the scores of 4 heads and a mask; where paths are copied, with the keys
    grown, of_copies = (many - few for few, many in made.values())
    on_hf = backend.info.backend == "hf"
    assert grown <= 8 * 600 * (1 if on_hf else 2 * 4 * 4 + 1)  # scores, before and after their softmax
    assert of_copies >= 8 * 600 * backend.widest_bytes // (4 if on_hf else 1)


# ---- the parts ----------------------------------------------------------------------------------------------------------


def test_sharing_is_chosen_where_it_costs_less_than_copying() -> None:
    # given eight rows over one prefix
    pasts, ones = np.full(8, 1500), np.ones(8, np.int64)
    assert worth_sharing(pasts, ones, 1508, masked_per_copy=2.0, reach=UNBOUNDED)
    # then copies are cheaper once the pack has too many unrelated slots
    assert worth_sharing(pasts, ones, 4500, masked_per_copy=2.0, reach=UNBOUNDED)
    assert not worth_sharing(pasts, ones, 4501, masked_per_copy=2.0, reach=UNBOUNDED)
    # and sooner for long tails, unless they differ in length, which would need a copy for each length
    assert not worth_sharing(pasts, np.full(8, 10), 2000, masked_per_copy=2.0, reach=UNBOUNDED)
    assert worth_sharing(pasts, np.arange(6, 14), 2000, masked_per_copy=2.0, reach=UNBOUNDED)
    # sharing does not pay where all layers have a sliding window, since copies are no longer than the window
    assert not worth_sharing(pasts, ones, 3000, masked_per_copy=2.0, reach=512)
    # and without a past there is nothing to copy
    assert not worth_sharing(np.empty(0, np.int64), np.empty(0, np.int64), 8, masked_per_copy=2.0, reach=UNBOUNDED)


def test_a_window_reaches_back_by_positions_and_not_by_slots() -> None:
    # given two branches of a stem of three, whose slots alternate
    tree = SlotTree()
    tree.append(np.array([ROOT, 0, 1, 2, 2, 3, 4]))
    shared = Shared(tree.visible(5)[:, None], tree.depths, np.empty(0, np.int64))
    slots, nothing = np.array([[5], [6]]), np.empty((2, 0), np.int64)
    bucket = Bucket(slots, slots, np.array([[4], [4]]), np.arange(2), nothing, shared=shared)
    assert (bucket.masked, bucket.past) == (True, 6)
    assert bucket.visible(None).astype(int).tolist() == [[[1, 1, 1, 1, 0, 1, 0]], [[1, 1, 1, 0, 1, 0, 1]]]
    assert bucket.visible(3).astype(int).tolist() == [[[0, 0, 1, 1, 0, 1, 0]], [[0, 0, 1, 0, 1, 0, 1]]]
    assert (bucket.first(None), bucket.first(3), bucket.first(9)) == (0, 2, 0)


def test_a_layer_returns_views_of_its_buffer() -> None:
    layer, new = SlotLayer(), torch.ones(2, 3, 1, 4)
    layer.lazy_initialization(torch.empty(1, 3, 0, 4), torch.empty(1, 3, 0, 4))
    layer.resize(9)
    layer.place = Placement(8, past=7, slots=torch.tensor([5, 7]), blank=slice(6, 7), firsts={None: 0})
    keys, values = layer.update(new, new)
    assert keys.shape == values.shape == (1, 3, 8, 4)
    assert keys.untyped_storage().data_ptr() == layer.keys.untyped_storage().data_ptr()
    assert keys[0, 0, 5:, 0].tolist() == [1, 0, 1]
