"""Two models on one text, against numpy over plain transformers' forward."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from runtime import (
    ContextOverflowError,
    InvalidRequestError,
    LanguageModel,
    ModelComparison,
    Priority,
    compare_models,
    load,
)
from tests.runtime.adapters.makers import Peft, adapters_of
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.tiny_models import tiny_path

TEXT = "The rain in 上海 stops, naïve 🌧 clouds “leave”.\n\tdef f(x): return x"
IDS = [5, 900, 17, 23, 44, 310, 311, 999, 3, 3, 64, 128, 777, 12, 500, 501, 8, 9, 250, 251, 18, 90]
EXACT = 1e-12


def compared(left: LanguageModel, right: LanguageModel, text: Any, **how: Any) -> ModelComparison:
    return asyncio.run(compare_models(left, right, text, **how))


def log_likelihood(rows: Any, ids: list[int]) -> Any:
    """``(n,)`` float: NaN for the first token."""
    return np.array([np.nan, *(rows[i, token] for i, token in enumerate(ids[1:]))])


@pytest.fixture(scope="module")
def llama() -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend="hf") as made:
        yield made


@pytest.fixture(scope="module")
def toy() -> Iterator[LanguageModel]:
    """A model whose tokens are single bytes."""
    with load("x", backend="fake") as made:
        yield made


@pytest.fixture(scope="module")
def other() -> Iterator[LanguageModel]:
    """A tiny llama with another tokenizer: neither side's token borders contain the other's."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    specials = ["<|im_start|>", "<|end|>"]
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=specials, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(["e rain in the st ops, na clou ds return x: 上海 🌧 stops, naïve"] * 4, trainer)
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=330, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=512, initializer_range=0.3,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config).float().eval()
    with load((model, PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>")), backend="hf") as made:
        yield made


def slowly(*names: str) -> list[Any]:
    return [pytest.param(name, marks=pytest.mark.slow) for name in names]


@pytest.mark.parametrize("name", ["gemma3", "falcon_h1", *slowly("qwen3", "mistral", "mamba", "lfm2")])
def test_two_models_with_one_vocabulary_are_compared_by_token(llama: LanguageModel, name: str) -> None:
    with load(tiny_path(name), backend="hf") as right:
        found = compared(llama, right, np.array(IDS), kl_start=0)
    p, q = expected("llama", IDS), expected(name, IDS)
    assert found.aligned_by == "tokens"
    assert len(found) == len(IDS)
    for side, rows in ((found.left, p), (found.right, q)):
        own = log_likelihood(rows, IDS)
        np.testing.assert_allclose(side.logprob, own, atol=TOLERANCE)
        assert side.rank[1:].tolist() == [1 + int((r > r[t]).sum()) for r, t in zip(rows[:-1], IDS[1:], strict=True)]
        assert [side.top_of(i) for i in range(1, len(IDS))] == [llama.decode_token(int(r.argmax())) for r in rows[:-1]]
        np.testing.assert_allclose(side.top_logprob[1:], rows[:-1].max(-1), atol=TOLERANCE)
    np.testing.assert_allclose(found.difference, log_likelihood(q, IDS) - log_likelihood(p, IDS), atol=2 * TOLERANCE)
    wide, other = p[:-1].astype(np.float64), q[:-1].astype(np.float64)
    assert found.kl is not None
    np.testing.assert_allclose(found.kl[1:], (np.exp(wide) * (wide - other)).sum(-1), atol=2 * TOLERANCE)
    assert np.isnan(found.kl[0])
    one, two = found.totals()
    sizes = [len(llama.decode_token(token)) for token in IDS[1:]]
    assert (one.tokens, two.tokens, one.bytes) == (len(IDS) - 1, len(IDS) - 1, sum(sizes))
    total = float(np.nansum(log_likelihood(q, IDS)))
    assert two.perplexity == pytest.approx(np.exp(-total / two.tokens), rel=1e-4)
    assert two.byte_perplexity == pytest.approx(np.exp(-total / sum(sizes)), rel=1e-4)


@pytest.mark.parametrize("name", ["llama", *slowly("gemma3", "falcon_h1")])
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_model_compared_with_itself_has_no_difference(name: str, backend: str) -> None:
    with load(tiny_path(name), backend=backend) as model:
        found = compared(model, model, IDS, kl_start=0)
    assert found.difference[1:].tolist() == [0.0] * (len(IDS) - 1)
    assert found.kl is not None
    assert found.kl[1:].tolist() == [0.0] * (len(IDS) - 1)
    assert not found.disagree.any()


@pytest.mark.parametrize("name", ["llama", *slowly("mamba")])
def test_hf_and_mlx_differ_within_the_tolerance(name: str) -> None:
    with load(tiny_path(name), backend="hf") as left, load(tiny_path(name), backend="mlx") as right:
        found = compared(left, right, IDS, kl_start=0)
    assert [side.name for side in found.sides] == [f"tiny-{name} on hf", f"tiny-{name} on mlx"]
    assert np.abs(found.difference[1:]).max() < 2 * TOLERANCE
    assert found.kl is not None
    assert found.kl[1:].max() < TOLERANCE


@pytest.mark.slow
def test_a_model_with_adapters_is_compared_with_its_base(tmp_path: Path) -> None:
    a, b = adapters_of("llama", tmp_path)
    peft = Peft("llama", A=a, B=b)
    with load(tiny_path("llama"), backend="hf") as model:
        for folder in (a, b):
            model.load_adapter(model.add_adapter(folder))
        stack = [("A", 1.0), ("B", 0.5)]
        found = compared(model, model, IDS, left_adapters=(), right_adapters=stack, kl_start=10)
    plain = log_likelihood(peft.logprobs(IDS), IDS)
    adapted = log_likelihood(peft.logprobs(IDS, *stack), IDS)
    np.testing.assert_allclose(found.difference, adapted - plain, atol=2 * TOLERANCE)
    assert found.kl is not None
    assert np.isnan(found.kl).tolist() == [i < 10 for i in range(len(IDS))]
    p, q = (peft.logprobs(IDS, *s)[9:-1].astype(np.float64) for s in ((), stack))
    np.testing.assert_allclose(found.kl[10:], (np.exp(p) * (p - q)).sum(-1), atol=2 * TOLERANCE)


def test_a_model_is_compared_with_itself_in_another_dtype(llama: LanguageModel) -> None:
    with load(tiny_path("llama"), backend="hf", dtype="bfloat16") as right:
        found = compared(llama, right, IDS)
        rows = np.stack([right.next_token_logprobs_uncached(IDS[:i]) for i in range(1, len(IDS))])
    assert found.kl is None  # not requested
    own = log_likelihood(rows, IDS)
    np.testing.assert_allclose(found.difference, own - log_likelihood(expected("llama", IDS), IDS), atol=0.2)
    assert np.abs(found.difference[1:]).max() > 1e-3


def spans(found: ModelComparison) -> Iterator[tuple[tuple[bytes, ...], tuple[bytes, ...]]]:
    return ((found.left.tokens_of(i), found.right.tokens_of(i)) for i in range(len(found)))


@pytest.mark.slow
@pytest.mark.parametrize("turned", [False, True])
def test_different_tokenizers_are_aligned_by_their_bytes(llama: LanguageModel, other: LanguageModel, *, turned: bool) -> None:
    left, right = (other, llama) if turned else (llama, other)
    found = compared(left, right, TEXT, kl_start=0)
    assert (found.aligned_by, found.kl) == ("bytes", None)
    assert b"".join(data for one, _ in spans(found) for data in one) == TEXT.encode()
    assert all(b"".join(one) == b"".join(two) for one, two in spans(found))
    counts = {(len(one), len(two)) for one, two in spans(found)}
    assert {(1, 1)} < counts  # and also several of one side for several of the other
    assert any(min(count) > 1 for count in counts)
    for side, model in ((found.left, left), (found.right, right)):
        ids = model.tokenize(TEXT)
        assert side.run.ids.tolist() == ids
        rows = np.stack([model.next_token_logprobs_uncached(ids[:i]) for i in range(1, len(ids))])
        own = log_likelihood(rows, ids)
        sums = [own[a:b].sum() for a, b in zip(side.borders, side.borders[1:], strict=False)]
        np.testing.assert_allclose(side.logprob, sums, atol=1e-3)
        single = np.diff(side.borders) == 1
        assert (side.rank[~single] == 0).all()
        assert (side.rank[single][1:] > 0).all()
    one, two = found.totals()
    assert one.bytes == two.bytes
    assert one.tokens != two.tokens


@pytest.mark.parametrize("turned", [False, True])
def test_a_bos_of_one_model_does_not_count_as_text(toy: LanguageModel, *, turned: bool) -> None:
    with load(tiny_path("llama"), backend="hf", add_bos="yes") as begun:
        ids = begun.tokenize(TEXT)
        assert ids == begun.tokenize("") + begun.tokenize(TEXT, add_special_tokens=False)
        left, right = (toy, begun) if turned else (begun, toy)
        found = compared(left, right, TEXT)
        sides = (found.right, found.left) if turned else (found.left, found.right)
        assert [side.run.ids.tolist() for side in sides] == [ids, toy.tokenize(TEXT)]
        assert found.totals()[0].bytes == found.totals()[1].bytes > 0
        same = compared(begun, begun, TEXT)
    assert (same.aligned_by, len(same)) == ("tokens", len(ids))
    (start, *others), spelled = sides[0].tokens_of(0), sides[1].tokens_of(0)
    assert start.startswith(b"<")
    assert b"".join(others) == b"".join(spelled)
    assert all(b"".join(sides[0].tokens_of(i)) == b"".join(sides[1].tokens_of(i)) for i in range(1, len(found)))


def test_characters_split_over_several_tokens_are_aligned(llama: LanguageModel, toy: LanguageModel) -> None:
    found = compared(toy, llama, "上海 🌧 é")
    assert len(found) == len(llama.tokenize("上海 🌧 é"))  # llama's token borders are all byte borders
    assert [len(b"".join(one)) for one, _ in spans(found)] == [len(one) for one, _ in spans(found)]


def test_an_unfinished_character_at_the_end_belongs_to_the_first_model_alone(llama: LanguageModel, toy: LanguageModel) -> None:
    ids = list("so 海".encode())[:-1]
    found = compared(toy, llama, ids)
    assert list(spans(found))[-1] == ((b"\xe6", b"\xb5"), ())
    assert not found.scored[-1]
    assert found.totals()[0].bytes == found.totals()[1].bytes <= len(b"so ")


def test_control_tokens_of_both_models_stay_control_tokens(other: LanguageModel, toy: LanguageModel) -> None:
    start = toy.render_chat([{"role": "user", "content": "rain"}])[0]
    found = compared(toy, other, [start, *b"rain", start, *b"x<|im_start|>"])
    control = other.byte_vocab.index(b"<|im_start|>")
    ids = found.right.run.ids.tolist()
    assert ids == [control, *other.tokenize("rain"), control, *other.tokenize("x<|im_start|>")]
    assert ids.count(control) == 2


def test_invalid_utf8_is_tokenised_byte_by_byte(toy: LanguageModel, llama: LanguageModel) -> None:
    data = b"rain \xff\xfe caf\xc3 au \xf0\x9f lait \xe6"  # the last byte may be the beginning of a character
    found = compared(toy, llama, list(data))
    whole = b"".join(b"".join(two) for _, two in spans(found))
    assert whole == data[:-1]
    ids = found.right.run.ids.tolist()
    single = [llama.byte_vocab.index(bytes([byte])) for byte in (0xFF, 0xFE)]
    text = llama.tokenize("rain ")
    assert ids[: len(text) + 2] == [*text, *single]
    rows = np.stack([llama.next_token_logprobs_uncached(ids[:i]) for i in range(1, len(ids))])
    assert np.nansum(found.right.logprob) == pytest.approx(float(np.nansum(log_likelihood(rows, ids))), abs=1e-3)
    assert compared(toy, toy, [65, 0xFF, 66]).aligned_by == "tokens"


def test_a_byte_missing_from_the_other_vocabulary_is_refused_by_name(toy: LanguageModel, llama: LanguageModel) -> None:
    class Lacking:
        @property
        def byte_vocab(self) -> list[bytes]:
            return [data for data in llama.byte_vocab if data != b"\xff"]

        def __getattr__(self, name: str) -> Any:
            return getattr(llama, name)

    with pytest.raises(InvalidRequestError, match="no token for byte 0xff"):
        compared(toy, cast("LanguageModel", Lacking()), [65, 0xFF, 66])


def test_the_same_model_with_other_load_options_gets_another_name(llama: LanguageModel, toy: LanguageModel) -> None:
    with load(tiny_path("llama"), backend="hf", device="cpu", weights="int8", kv_dtype="q8") as right:
        found = compared(llama, right, TEXT, kl_start=0)
        beside = compared(right, toy, TEXT)
    assert found.right.name == "tiny-llama with weights=int8, kv_dtype=q8"
    assert found.left.name.startswith("tiny-llama with weights=")
    assert found.aligned_by == "tokens"
    assert [side.name for side in beside.sides] == ["tiny-llama with weights=int8", toy.info.name]
    assert 0 < np.nanmax(np.abs(found.difference)) < 1.0
    assert found.kl is not None
    assert np.nanmax(found.kl) > 0


def test_a_tokenizer_that_changes_the_text_is_refused(llama: LanguageModel) -> None:
    import torch
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"hello": 0, "rain": 1, "?": 2}, unk_token="?"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, num_key_value_heads=1
    )
    pair = AutoModelForCausalLM.from_config(config).float().eval(), PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    with load(pair, backend="hf") as wordy, pytest.raises(InvalidRequestError, match=r"other bytes \(from byte 0 on\)"):
        compared(llama, wordy, "Hello rain")


def test_an_empty_text_is_refused_and_a_single_token_has_no_totals(llama: LanguageModel, toy: LanguageModel) -> None:
    for nothing in ("", list[int]()):
        with pytest.raises(InvalidRequestError, match="nothing to compare"):
            compared(llama, toy, nothing)
    found = compared(llama, llama, [7], kl_start=0)
    assert len(found) == 1
    assert not found.scored.any()
    assert found.totals()[0].perplexity is None
    assert found.totals()[1].byte_perplexity is None
    assert found.kl is not None
    assert np.isnan(found.kl).all()


def test_the_top_tokens_agree_when_one_is_a_prefix_of_the_other(llama: LanguageModel, other: LanguageModel) -> None:
    found = compared(llama, other, TEXT)
    for i, disagree in enumerate(found.disagree.tolist()):
        one, two = found.left.top_of(i), found.right.top_of(i)
        assert disagree == bool(one and two and one[: len(two)] != two[: len(one)])
    assert 0 < found.disagrees() < len(found)


def test_a_text_too_long_for_one_of_the_models_is_refused(llama: LanguageModel, other: LanguageModel) -> None:
    with pytest.raises(ContextOverflowError, match="512"):
        compared(llama, other, "rain " * 600)


def test_progress_rises_to_the_total_and_scoring_has_background_priority(llama: LanguageModel, toy: LanguageModel) -> None:
    told: list[tuple[int, int]] = []
    shown: list[tuple[int, int | None]] = []
    hears = {"on_progress": lambda done, total: told.append((done, total))}
    compared(llama, llama, IDS, kl_start=5, progress=lambda done, total: shown.append((done, total)), **hears)
    assert shown == told
    total = 2 * len(IDS) + 2 * (len(IDS) - 5)
    assert told == sorted(told)
    assert told[-1] == (total, total)
    asked: list[Priority] = []

    class Listening:
        def __getattr__(self, name: str) -> Any:
            return getattr(toy, name)

        async def score_run(self, *ids: Any, priority: Priority, **how: Any) -> Any:
            asked.append(priority)
            return await toy.score_run(*ids, priority=priority, **how)

    compared(Listening(), Listening(), "rain")  # type: ignore[arg-type]  # the rest is delegated
    assert asked == [Priority.BACKGROUND] * 2


def test_rows_for_kl_are_requested_in_small_batches(toy: LanguageModel) -> None:
    sizes: list[int] = []

    class Counting:
        def __getattr__(self, name: str) -> Any:
            return getattr(toy, name)

        async def batch_next_token_logprobs(self, batch: Any, **how: Any) -> Any:
            sizes.append(len(batch))
            return await toy.batch_next_token_logprobs(batch, **how)

    compared(cast("LanguageModel", Counting()), toy, "rain " * 10, kl_start=0)
    assert sizes == [16, 16, 16, 1]


@pytest.mark.slow
def test_smollm2_is_compared_with_a_model_of_bytes(toy: LanguageModel) -> None:
    with load("smollm2", backend="hf") as model:
        found = compared(model, toy, TEXT)
        assert len(found) == len(model.tokenize(TEXT))  # its token borders are all byte borders
    assert b"".join(data for one, _ in spans(found) for data in one) == TEXT.encode()
    one, two = found.totals()
    assert one.byte_perplexity is not None
    assert two.byte_perplexity is not None
    assert one.byte_perplexity < two.byte_perplexity


@pytest.mark.slow
def test_logits_of_different_width_have_no_kl(llama: LanguageModel) -> None:
    with load(tiny_path("llama_wide"), backend="hf") as wide:
        found = compared(llama, wide, IDS, kl_start=0)
    assert (found.aligned_by, found.kl) == ("tokens", None)
    np.testing.assert_allclose(found.right.logprob, log_likelihood(expected("llama_wide", IDS), IDS), atol=TOLERANCE)
