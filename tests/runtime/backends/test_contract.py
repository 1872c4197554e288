"""The contract of every backend on every architecture: the numbers of transformers' full forward for any order of calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from runtime.backends.base import ROOT
from runtime.backends.registry import register_backend, unregister_backend
from runtime.errors import ContextOverflowError, InvalidRequestError, UnsupportedFeatureError
from runtime.options.load import LoadOptions
from tests.runtime.backends.reference import HF, RECURRENT, Loaded, append, chain, log_softmax, third_backend

NOTHING = np.empty(0, np.int64)
TOYS = [("fake", "toy"), ("fake", "recurrent"), ("mock", "toy"), ("third", "toy")]
REAL = [(backend, name) for backend in ("hf", "mlx") for name in HF]
QUANTISED = [(backend, name, "q8") for backend in ("hf", "mlx") for name in ("llama", "gemma3", "lfm2", "falcon_h1")]
PACKED = [("hf", "llama", weights) for weights in ("float16", "bfloat16", "int8", "int4")] + [("hf", "lfm2", "int8")]
CASES: list[tuple[str, ...]] = [*TOYS, *REAL, *QUANTISED, *PACKED]
SLICEABLE = [case for case in CASES if case[1] not in RECURRENT]
UNBOUNDED = [*TOYS, ("hf", "mamba"), ("mlx", "mamba")]  # models without a context limit
BOUNDED = [case for case in REAL if case not in UNBOUNDED]


def only(cases: Sequence[tuple[str, ...]]) -> pytest.MarkDecorator:
    """Restricts a test to these of `CASES`."""
    return pytest.mark.parametrize("loaded", cases, ids="-".join, indirect=True, scope="module")


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    register_backend("third", third_backend)
    backend, name, *form = request.param
    option = {} if not form else {"kv_dtype" if form[0] == "q8" else "weights": form[0]}
    one = Loaded(backend, name, LoadOptions.from_mapping(option))
    yield one
    one.backend.unload()
    unregister_backend("third")


@pytest.fixture
def pack(loaded: Loaded) -> Iterator[Any]:
    made = loaded.backend.open_pack()
    yield made
    loaded.backend.close(made)


@pytest.mark.sampled(2)
def test_one_chain_equals_the_plain_forward(loaded: Loaded, pack: Any) -> None:
    ids = loaded.ids(1, 40)
    slots, got = append(loaded.backend, pack, ids)
    assert slots.tolist() == list(range(40))
    loaded.check(got, ids)


@pytest.mark.slow
def test_uncached_equals_the_plain_forward(loaded: Loaded) -> None:
    ids = loaded.ids(2, 40)
    loaded.check(log_softmax(loaded.backend.logits_uncached(ids.tolist())), ids, -1)


@pytest.mark.sampled(2)
def test_chunks_and_single_tokens_equal_one_forward(loaded: Loaded, pack: Any) -> None:
    ids = loaded.ids(3, 45)
    got, at = [], ROOT
    for piece in np.split(ids, [19, 20, 21, 36]):  # across windows, with single tokens between
        slots, rows = append(loaded.backend, pack, piece, at)
        got.append(rows)
        at = int(slots[-1])
    loaded.check(np.concatenate(got), ids)


@pytest.mark.slow
def test_only_wanted_rows_come_back(loaded: Loaded, pack: Any) -> None:
    ids = loaded.ids(4, 12)
    want = np.array([2, 3, 11])
    _, logits = loaded.backend.forward(pack, ids, chain(0, 12, ROOT), want)
    assert logits.shape == (3, loaded.backend.info.vocab_size)
    assert logits.dtype == np.float32
    loaded.check(log_softmax(logits), ids, want)
    _, none = loaded.backend.forward(pack, ids[:2], chain(12, 2, 11), NOTHING)
    assert none.shape == (0, loaded.backend.info.vocab_size)
    _, row = append(loaded.backend, pack, ids[2:3], 13)
    loaded.check(row, [*ids, *ids[:3]], [-1])


@pytest.mark.sampled(2)
def test_a_tree_in_one_call_equals_each_path_alone(loaded: Loaded, pack: Any) -> None:
    # given a trunk, when a tree of new tokens with nested branches is pushed in one call
    trunk, new = loaded.ids(5, 20), loaded.ids(6, 9)
    append(loaded.backend, pack, trunk)
    parents = np.array([19, 20, 20, 22, 19, 24, 25, 20, 25])  # slot 20 is the call's first token
    slots, logits = loaded.backend.forward(pack, new, parents, np.arange(9))
    # then every row equals that of its path alone
    got = log_softmax(logits)
    for j, slot in enumerate(slots.tolist()):
        path = []
        while slot >= 20:
            path.append(int(new[slot - 20]))
            slot = int(parents[slot - 20])
        text = [*trunk, *reversed(path)]
        loaded.check(got[j : j + 1], text, [-1])


@pytest.mark.slow
def test_unrelated_rows_in_one_call_equal_each_text_alone(loaded: Loaded, pack: Any) -> None:
    texts = [loaded.ids(seed, n) for seed, n in ((7, 5), (8, 1), (9, 21))]
    starts = np.cumsum([0, 5, 1])
    parents = np.concatenate([chain(int(s), len(t), ROOT) for s, t in zip(starts, texts, strict=True)])
    _, logits = loaded.backend.forward(pack, np.concatenate(texts), parents, np.arange(27))
    for text, start in zip(texts, starts, strict=True):
        loaded.check(log_softmax(logits[start : start + len(text)]), text)


@pytest.mark.slow
def test_new_rows_beside_a_long_row_equal_each_text_alone(loaded: Loaded, pack: Any) -> None:
    # given a text longer than every window
    text = loaded.ids(50, 40)
    append(loaded.backend, pack, text)
    # when it continues in the same call in which two others begin, all of different length
    tails = [loaded.ids(seed, n) for seed, n in ((51, 3), (52, 5), (53, 1))]
    parents = np.concatenate([chain(40, 3, 39), chain(43, 5, ROOT), chain(48, 1, ROOT)])
    _, logits = loaded.backend.forward(pack, np.concatenate(tails), parents, np.arange(9))
    got = log_softmax(logits)
    # then each equals the text alone
    loaded.check(got[:3], [*text, *tails[0]], [-3, -2, -1])
    loaded.check(got[3:8], tails[1])
    loaded.check(got[8:], tails[2])


@pytest.mark.sampled(2)
def test_rows_decoded_together_equal_each_text_alone(loaded: Loaded, pack: Any) -> None:
    # given three rows of different length
    texts = [loaded.ids(seed, n).tolist() for seed, n in ((10, 18), (11, 4), (12, 9))]
    tips = [int(append(loaded.backend, pack, text)[0][-1]) for text in texts]
    # when each gets one token per call
    for step in range(20):
        new = loaded.ids(13 + step, 3)
        slots, logits = loaded.backend.forward(pack, new, np.array(tips), np.arange(3))
        tips = slots.tolist()
        for text, token in zip(texts, new, strict=True):
            text.append(int(token))
        got = log_softmax(logits)
    for row, text in enumerate(texts):
        loaded.check(got[row : row + 1], text, [-1])


@pytest.mark.sampled(2)
def test_a_long_and_short_branches_in_one_call_equal_their_paths_alone(loaded: Loaded, pack: Any) -> None:
    trunk, long, short = loaded.ids(40, 10), loaded.ids(41, 50), loaded.ids(42, 2)
    append(loaded.backend, pack, trunk)
    parents = np.concatenate([[9], chain(11, 50, 9), [10]])
    _, logits = loaded.backend.forward(pack, np.concatenate([short[:1], long, short[1:]]), parents, np.array([0, 50, 51]))
    got = log_softmax(logits)
    loaded.check(got[:1], [*trunk, short[0]], [-1])
    loaded.check(got[1:2], [*trunk, *long], [-1])
    loaded.check(got[2:], [*trunk, *short], [-1])


@pytest.mark.slow
@only(SLICEABLE)  # recurrent state is kept at chain ends only: see test_recurrent
def test_a_text_can_be_forked_at_any_slot(loaded: Loaded, pack: Any) -> None:
    ids = loaded.ids(14, 30)
    append(loaded.backend, pack, ids)
    for at in (0, 7, 15, 28):
        tail = loaded.ids(15 + at, 3)
        _, got = append(loaded.backend, pack, tail, at)
        loaded.check(got, [*ids[: at + 1], *tail], slice(at + 1, None))


@pytest.mark.slow
def test_a_payload_taken_and_loaded_equals_the_uncached_text(loaded: Loaded, pack: Any) -> None:
    ids, tail = loaded.ids(16, 37), loaded.ids(17, 4)
    slots, _ = append(loaded.backend, pack, ids)
    payload = loaded.backend.take(pack, slots)
    assert loaded.backend.payload_resumable(payload)
    other = loaded.backend.open_pack()
    append(loaded.backend, other, loaded.ids(18, 6))  # the pack already holds another text
    held = loaded.backend.load(other, payload, ROOT)
    assert held.tolist() == list(range(6, 43))
    _, got = append(loaded.backend, other, tail, int(held[-1]))
    loaded.check(got, [*ids, *tail], slice(37, None))
    loaded.backend.close(other)


@pytest.mark.sampled(2)
def test_a_branch_taken_from_interleaved_rows_can_be_continued(loaded: Loaded, pack: Any) -> None:
    # given two rows whose slots alternate, when one is taken
    ids, other = loaded.ids(19, 8), loaded.ids(20, 8)
    tips = [ROOT, ROOT]
    mine = []
    for a, b in zip(ids, other, strict=True):
        slots, _ = loaded.backend.forward(pack, np.array([a, b]), np.array(tips), NOTHING)
        tips = slots.tolist()
        mine.append(tips[0])
    payload = loaded.backend.take(pack, np.array(mine))
    # then it can be loaded into an empty pack and continued
    fresh = loaded.backend.open_pack()
    held = loaded.backend.load(fresh, payload, ROOT)
    _, got = append(loaded.backend, fresh, other, int(held[-1]))
    loaded.check(got, [*ids, *other], slice(8, None))
    loaded.backend.close(fresh)


@pytest.mark.slow
def test_chains_taken_at_once_equal_chains_taken_alone(loaded: Loaded, pack: Any) -> None:
    # given branches of one trunk, for a recurrent model only as many as its state allows
    backend, trunk, tails = loaded.backend, loaded.ids(15, 6), [loaded.ids(16 + n, n) for n in (1, 3, 1, 2)]
    slots, _ = append(backend, pack, trunk)
    chains = []
    for tail in tails:
        if not backend.resumable(pack, int(slots[-1])):
            break
        chains.append(append(backend, pack, tail, int(slots[-1]))[0])
    alone = [backend.export(backend.take(pack, each)) for each in chains]
    for together, want in zip(backend.take_many(pack, chains), alone, strict=True):
        got = backend.export(together)
        assert got.keys() == want.keys()
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
        assert backend.payload_bytes(together) == sum(
            a.nbytes for n, a in want.items() if n.startswith(("keys", "values", "state."))
        ) or (loaded.backend.info.backend not in ("hf", "mlx"))


@pytest.mark.slow
@only(SLICEABLE)  # for recurrent models, states are taken with each chain
def test_interleaved_chains_taken_at_once_equal_chains_taken_alone(loaded: Loaded, pack: Any) -> None:
    # given two rows whose slots alternate, and three branches that share their first new slot
    backend, ids, other = loaded.backend, loaded.ids(31, 6), loaded.ids(32, 6)
    tips, mine, theirs = [ROOT, ROOT], list[int](), list[int]()
    for a, b in zip(ids, other, strict=True):
        slots, _ = backend.forward(pack, np.array([a, b]), np.array(tips), NOTHING)
        tips = slots.tolist()
        mine.append(tips[0])
        theirs.append(tips[1])
    backend.forward(pack, loaded.ids(33, 4), np.array([tips[0], 12, 12, 12]), NOTHING)
    # when several chains with interleaved slots are taken at once
    for chains in (
        [mine[:2], theirs[:2]],
        [theirs[:3], mine[1:4]],
        [mine[2:4], theirs[1:3], mine[4:6], theirs[3:5]],
        [[12, 13], [12, 15]],
        [[12, 14], [12, 13], [15]],
    ):
        for got, chain_alone in zip(backend.take_many(pack, [np.array(c) for c in chains]), chains, strict=True):
            # then each equals the chain taken alone
            want = backend.export(backend.take(pack, np.array(chain_alone)))
            for name, array in backend.export(got).items():
                np.testing.assert_array_equal(array, want[name])


@pytest.mark.slow
def test_payloads_can_be_split_and_loaded_in_a_row(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(21, 33)
    first, _ = append(backend, pack, ids[:20])
    head = backend.take(pack, first)
    rest, _ = append(backend, pack, ids[20:], 19)
    tail = backend.take(pack, rest)
    a, b = backend.split(tail, 5)
    assert backend.payload_bytes(a) + backend.payload_bytes(b) == backend.payload_bytes(tail)
    fresh, at = backend.open_pack(), ROOT
    for part in (head, a, b):
        at = int(backend.load(fresh, part, at)[-1])
    assert backend.size(fresh) == 33
    more = loaded.ids(22, 3)
    _, got = append(backend, fresh, more, at)
    loaded.check(got, [*ids, *more], slice(33, None))
    backend.close(fresh)


@pytest.mark.slow
def test_an_exported_payload_can_be_restored_and_continued(loaded: Loaded, pack: Any) -> None:
    backend, ids, tail = loaded.backend, loaded.ids(23, 20), loaded.ids(24, 3)
    slots, _ = append(backend, pack, ids)
    payload = backend.take(pack, slots)
    plain = backend.export(payload)
    assert all(type(a) is np.ndarray for a in plain.values())
    back = backend.restore(plain)
    assert backend.payload_bytes(back) == backend.payload_bytes(payload)
    fresh = backend.open_pack()
    held = backend.load(fresh, back, ROOT)
    _, got = append(backend, fresh, tail, int(held[-1]))
    loaded.check(got, [*ids, *tail], slice(20, None))
    backend.close(fresh)


def test_payload_bytes_equal_the_bytes_per_token_of_info(loaded: Loaded, pack: Any) -> None:
    backend = loaded.backend
    slots, _ = append(backend, pack, loaded.ids(25, 10))
    a, b = backend.split(backend.take(pack, slots), 4)
    assert backend.payload_bytes(a) == 4 * backend.info.kv_bytes_per_token  # a head has no recurrent state
    if not loaded.recurrent:
        assert backend.payload_bytes(b) == 6 * backend.info.kv_bytes_per_token


@pytest.mark.sampled(1)
@only([("fake", "recurrent"), ("hf", "llama"), ("hf", "lfm2"), ("mlx", "gemma3"), ("mlx", "mamba"), ("mlx", "llama", "q8")])
def test_the_pack_grows_in_steps(loaded: Loaded, pack: Any) -> None:
    # given a prompt, when 100 tokens follow one by one, then the buffers grow only a few times and the numbers hold
    backend, ids = loaded.backend, loaded.ids(26, 120)
    append(backend, pack, ids[:20])
    sizes = set()
    for at in range(20, 120):
        backend.forward(pack, ids[at : at + 1], np.array([at - 1]), NOTHING)
        sizes.add(backend.pack_bytes(pack))
    assert len(sizes) <= 3
    _, got = append(backend, pack, ids[:1], 119)
    loaded.check(got, [*ids, ids[0]], [-1])


def test_a_refused_call_leaves_the_pack_as_it_was(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(27, 10)
    append(backend, pack, ids)
    limit = backend.info.vocab_size
    with pytest.raises(InvalidRequestError, match=f"{limit}|{limit:,}"):
        backend.forward(pack, np.array([5, limit]), np.array([9, 10]), NOTHING)
    with pytest.raises(InvalidRequestError, match="parents"):
        backend.forward(pack, np.array([5]), np.array([10]), NOTHING)
    assert backend.size(pack) == 10
    _, got = append(backend, pack, ids[:2], 9)
    loaded.check(got, [*ids, *ids[:2]], slice(10, None))


@pytest.mark.slow
def test_hidden_states_read_in_parts_equal_the_plain_forward(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(31, 30)
    got = np.concatenate([backend.extend(pack, part, "hidden") for part in np.split(ids, [7, 8])])
    assert got.shape == (30, backend.info.hidden_size)
    assert backend.size(pack) == 30
    if backend.info.backend != "mock":  # which has no model states
        plain = backend.hidden_states(ids[None])[0]
        np.testing.assert_allclose(got, plain, atol=loaded.tolerance * np.abs(plain).max(initial=1), rtol=0)


def test_an_unknown_reading_is_refused_by_name(loaded: Loaded, pack: Any) -> None:
    backend, ids = loaded.backend, loaded.ids(32, 10)
    append(backend, pack, ids)
    with pytest.raises(UnsupportedFeatureError, match=r"'letters'.* but hidden, layers"):
        backend.extend(pack, ids[:2], "letters")
    assert backend.size(pack) == 10
    _, got = append(backend, pack, ids[:2], 9)
    loaded.check(got, [*ids, *ids[:2]], slice(10, None))


@only(BOUNDED)
def test_a_path_longer_than_the_context_is_refused_before_compute(loaded: Loaded, pack: Any) -> None:
    backend, limit = loaded.backend, loaded.backend.info.context_length
    ids = loaded.ids(28, limit + 1)
    with pytest.raises(ContextOverflowError, match=f"{limit:,}"):
        backend.forward(pack, ids, chain(0, limit + 1, ROOT), NOTHING)
    assert backend.size(pack) == 0


@pytest.mark.parametrize("case", [case for case in UNBOUNDED if case[0] != "third"], ids="-".join)
def test_a_given_context_length_applies_to_models_without_a_limit(case: tuple[str, str]) -> None:
    one = Loaded(*case, LoadOptions(context_length=64))
    pack = one.backend.open_pack()
    assert one.backend.info.context_length == 64
    with pytest.raises(ContextOverflowError, match="64"):
        one.backend.forward(pack, one.ids(29, 65), chain(0, 65, ROOT), NOTHING)
    append(one.backend, pack, one.ids(30, 64))
    one.backend.unload()


@only(REAL)  # toys have no config
def test_info_describes_the_loaded_model(loaded: Loaded) -> None:
    info = loaded.backend.info
    assert info.vocab_size == (1024 if loaded.name == "llama_wide" else 1000)
    assert info.architecture.startswith(loaded.name.split("_")[0])
    assert ("recurrent" in info.attention_kinds) == loaded.recurrent
    assert ("sliding" in info.attention_kinds) == (loaded.name in ("gemma2", "gemma3", "gemma3_80", "mistral", "phi3"))
    assert (info.capabilities == ("tree",)) == (not loaded.recurrent)
    assert info.parameters > 50_000
    assert info.dtype == "float32"
    assert info.has_template
    assert len({info.kv_fingerprint, info.model_fingerprint}) == 2
