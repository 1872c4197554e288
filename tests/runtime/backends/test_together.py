"""One forward over several packs gives each token the numbers it has alone; a failure leaves all packs as they were."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import load
from runtime.backends.base import ROOT, PackTokens
from runtime.backends.packs.tree import Ragged
from runtime.errors import InvalidRequestError
from tests.fakes import engine_of, some_ids
from tests.runtime.backends.reference import Loaded, append, chain, log_softmax
from tests.tiny_models import VOCABULARY, tiny_tokenizer

NAMES = ("llama", "qwen3", "gpt2", "gemma3", "mistral", "phi3")
CASES = [("fake", "toy"), *((backend, name) for backend in ("hf", "mlx") for name in NAMES)]


@pytest.fixture(scope="module", params=CASES, ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[Loaded]:
    one = Loaded(*request.param)
    yield one
    one.backend.unload()


class Text:
    """A pack that holds the beginning of a text, and the part to push next: a chain, or several branches."""

    def __init__(self, loaded: Loaded, seed: int, held: int, *tails: int) -> None:
        self.pack = loaded.backend.open_pack()
        ids = loaded.ids(seed, held + sum(tails))
        self.stem, self.tails = ids[:held], np.split(ids[held:], np.cumsum(tails)[:-1])
        at = ROOT
        for piece in np.array_split(self.stem, 2):
            if len(piece):
                at = int(append(loaded.backend, self.pack, piece, at)[0][-1])
        starts = held + np.cumsum([0, *tails[:-1]])
        parents = np.concatenate([chain(int(s), len(t), at) for s, t in zip(starts, self.tails, strict=True)])
        self.part = PackTokens(self.pack, np.concatenate(self.tails), parents, np.arange(sum(tails)))

    def check(self, loaded: Loaded, logits: Any) -> None:
        for rows, tail in zip(np.split(logits, np.cumsum([len(t) for t in self.tails])[:-1]), self.tails, strict=True):
            path = [*self.stem.tolist(), *tail.tolist()]
            loaded.check(log_softmax(rows), path, np.arange(len(self.stem), len(path)))


@pytest.fixture
def texts(loaded: Loaded) -> Iterator[list[Text]]:
    """Texts beyond every window, without a past, of one token, and with several branches of one stem."""
    made = [
        Text(loaded, 1, 40, 1),
        Text(loaded, 2, 0, 23),
        Text(loaded, 3, 21, 4),
        Text(loaded, 4, 30, 2, 5),
        Text(loaded, 5, 0, 1),
        Text(loaded, 6, 18, 1, 1, 1),
    ]
    yield made
    for text in made:
        loaded.backend.close(text.pack)


@pytest.mark.sampled(1)
def test_each_part_of_a_joint_forward_equals_its_text_alone(loaded: Loaded, texts: list[Text]) -> None:
    backend = loaded.backend
    assert backend.together
    before, sizes = backend.forwards, [backend.size(text.pack) for text in texts]
    logits = backend.begin([text.part for text in texts])()
    assert backend.forwards == before + 1
    for text, rows in zip(texts, np.split(logits, np.cumsum([len(t.part.want) for t in texts])[:-1]), strict=True):
        text.check(loaded, rows)
    # and each pack then holds the same as after a forward of its own
    assert [backend.size(text.pack) for text in texts] == [n + len(t.part.tokens) for n, t in zip(sizes, texts, strict=True)]
    for text, size in zip(texts, sizes, strict=True):
        tail = text.tails[0]
        _, more = append(backend, text.pack, loaded.ids(9, 3), size + len(tail) - 1)
        path = [*text.stem.tolist(), *tail.tolist(), *loaded.ids(9, 3).tolist()]
        loaded.check(more, path, np.arange(len(path) - 3, len(path)))


def test_only_wanted_rows_come_back(loaded: Loaded, texts: list[Text]) -> None:
    parts = [
        PackTokens(t.pack, t.part.tokens, t.part.parents, t.part.want[-1:] if i % 2 else t.part.want[:0])
        for i, t in enumerate(texts)
    ]
    logits = loaded.backend.begin(parts)()
    assert logits.shape == (3, loaded.backend.info.vocab_size)
    for row, text in zip(logits, texts[1::2], strict=True):
        path = [*text.stem.tolist(), *text.tails[-1].tolist()]
        loaded.check(log_softmax(row), path, len(path) - 1)


def test_a_failure_leaves_every_pack_as_it_was(loaded: Loaded, texts: list[Text]) -> None:
    backend, sizes = loaded.backend, [loaded.backend.size(text.pack) for text in texts]
    bad = PackTokens(texts[-1].pack, np.array([10**6]), np.array([0]), np.array([0]))
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        backend.begin([*(text.part for text in texts[:-1]), bad])
    assert [backend.size(text.pack) for text in texts] == sizes
    text = texts[0]
    _, rows = append(backend, text.pack, text.tails[0], len(text.stem) - 1)
    loaded.check(rows, [*text.stem.tolist(), *text.tails[0].tolist()], [len(text.stem)])


def test_a_prepared_joint_forward_gives_the_same_numbers(loaded: Loaded, texts: list[Text]) -> None:
    backend = loaded.backend
    for text in texts:
        backend.resize(text.pack, 64)
    blank = [PackTokens(t.pack, np.zeros(len(t.part.tokens), np.int64), t.part.parents, t.part.want) for t in texts]
    begin = backend.prepare(blank)
    assert (begin is not None) == backend.overlaps
    if begin is not None:
        logits = begin(np.concatenate([text.part.tokens for text in texts]))()
        for text, rows in zip(texts, np.split(logits, np.cumsum([len(t.part.want) for t in texts])[:-1]), strict=True):
            text.check(loaded, rows)


@pytest.mark.parametrize("past", [0, 3])
def test_chains_of_one_pack_attend_separately_beside_another_pack(past: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # given two chains of three tokens in one pack, as with half precision on CUDA, and four tokens of another pack
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    from runtime.backends.hf import cache, forward

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:  # (tokens, heads, dim)
        seen = torch.arange(len(key))[None] <= torch.arange(len(key) - len(query), len(key))[:, None]
        parts = (part.transpose(0, 1)[None] for part in (query, key, value))
        return scaled_dot_product_attention(*parts, attn_mask=seen, scale=0.5)[0].transpose(0, 1)

    def attend_apart(  # in place of the kernel that only CUDA has
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, queries: Any, keys: Any, *_: Any, **__: Any
    ) -> torch.Tensor:
        ends = zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True)
        return torch.cat([attend(query[a:b], key[c:d], value[c:d]) for a, b, c, d in ends])

    monkeypatch.setattr(forward, "varlen_attn", attend_apart)
    torch.manual_seed(0)
    query, key, value, old = (torch.randn(1, 2, n, 8) for n in (10, 10, 10, past))
    plain, branching = cache.SlotLayer(), cache.SlotLayer()
    if past:
        branching.place = cache.Placement(past)
        branching.update(old, old)
    plain.place = cache.Placement(4)
    ragged = Ragged(np.array([3, 3]), [np.arange(past)] * 2)
    place = cache.RaggedKeys.made(ragged, past, torch.device("cpu"))
    branching.place = cache.Placement(past + 6, past, past=past, ragged=place)
    # when both packs pass through a layer together
    joint = cache.JointLayer([plain, branching], [4, 6], [None, None], is_sliding=False, ragged=True)
    module = torch.nn.Module()
    module.is_causal = True  # as in the library's attention
    attended = forward.own_sdpa(module, query, *joint.update(key, value), None, scaling=0.5)[0][0]
    # then each token attends only to its own chain
    query, key, value, old = (tensor[0].transpose(0, 1) for tensor in (query, key, value, old))
    chains = [attend(query[a:b], torch.cat([old, key[a:b]]), torch.cat([old, value[a:b]])) for a, b in ((4, 7), (7, 10))]
    expected = [attend(query[:4], key[:4], value[:4]), *chains]
    torch.testing.assert_close(attended, torch.cat(expected))


def test_layers_that_share_keys_attend_over_several_packs() -> None:
    # given a model whose last layers use the keys of earlier layers
    import torch
    from transformers import AutoModelForCausalLM, Gemma4TextConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = Gemma4TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        global_head_dim=8,
        num_kv_shared_layers=2,
        layer_types=["sliding_attention", "full_attention"] * 2,
        sliding_window=16,
        max_position_embeddings=512,
        hidden_size_per_layer_input=8,
        vocab_size_per_layer_input=VOCABULARY,
    )
    library: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    pair = library, PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    with load(pair, "hf", device="cpu", threads=1) as model:
        assert engine_of(model).backend.together
        # when several texts are computed together
        texts = [some_ids(seed, 20 + seed) for seed in range(3)]
        got = model.batch_next_token_logprobs_sync(texts)
        for text, row in zip(texts, got, strict=True):
            np.testing.assert_allclose(row, model.next_token_logprobs_uncached(text), atol=1e-4, rtol=0)


def test_a_model_that_reads_its_attention_mask_itself_gets_the_plain_mask() -> None:
    import torch
    from transformers import AutoModelForCausalLM, DogeConfig, PreTrainedTokenizerFast

    torch.manual_seed(0)
    config = DogeConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    library: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").float().eval()
    pair = library, PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer())
    with load(pair, "hf", device="cpu", threads=1) as model:
        # given a cached path, when a few tokens follow it, alone and as a tree
        path = some_ids(0, 40)
        texts = [[*path, *some_ids(seed, length)] for seed, length in ((1, 5), (2, 1), (3, 9))]
        model.cache_kv(path)
        for rows in ([model.next_token_logprobs_sync(text) for text in texts], model.batch_next_token_logprobs_sync(texts)):
            for text, row in zip(texts, rows, strict=True):
                np.testing.assert_allclose(row, model.next_token_logprobs_uncached(text), atol=1e-4, rtol=0)
