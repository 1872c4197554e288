"""Sampled streams on real architectures: the same alone, in a batch, on a branch and warm, and as by transformers."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime import LanguageModel, load
from runtime.errors import InvalidRequestError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

ALL_STAGES = SamplingOptions(
    temperature=1.3,
    top_k=400,
    top_p=0.98,
    min_p=0.0005,
    typical_p=0.97,
    xtc_probability=0.5,
    xtc_threshold=0.003,
    repetition_penalty=1.15,
    presence_penalty=0.2,
    frequency_penalty=0.1,
    penalty_window=30,
    dry_multiplier=0.8,
    logit_bias={3: 1.0},
    banned_tokens=(4,),
)


@pytest.fixture(scope="module", params=["hf", "mlx"])
def model(request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with load(tiny_path("llama"), backend=request.param, threads=1) as model:
        yield model


def ids(seed: int, n: int) -> list[int]:
    return [int(i) for i in random_ids(seed, n)]


def options(**changes: Any) -> GenerationOptions:
    return GenerationOptions(**{"max_tokens": 12, "sampling": ALL_STAGES, "ignore_eos": True, "seed": 5, **changes})


def tokens(records: list[TokenRecord]) -> list[int]:
    return [record.token_id for record in records]


@pytest.mark.slow
def test_a_stream_is_the_same_alone_in_a_batch_on_a_branch_and_warm(model: LanguageModel) -> None:
    prompt = ids(1, 30)
    model.clear_cache()
    alone = tokens(list(model.generate_sync(prompt, options())))
    assert len(set(alone)) > 4

    async def batch() -> list[list[int]]:
        async def one(path: list[int], chosen: GenerationOptions) -> list[int]:
            return tokens([record async for record in model.generate(path, chosen)])

        others = [one(ids(seed, 20 + seed), options(seed=seed)) for seed in range(3)]
        stages = one(prompt, options(stages=True))
        rest = one([*prompt, *alone[:5]], options(max_tokens=7))  # from the middle of the answer
        return await asyncio.gather(*others, one(prompt, options()), stages, rest)

    *_, again, staged, rest = asyncio.run(batch())
    assert again == alone
    assert staged == alone
    assert rest == alone[5:]
    assert tokens(list(model.generate_sync(prompt, options()))) == alone  # from the cached distribution
    assert tokens(list(model.generate_sync(prompt, options(branch=1)))) != alone


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_a_stream_is_the_same_after_a_reload(backend: str) -> None:
    streams = []
    for _ in range(2):
        with load(tiny_path("llama"), backend=backend, threads=1) as model:
            streams.append(tokens(list(model.generate_sync(ids(1, 30), options()))))
            # and a branch of it, under its own number, from the middle
            path = [*ids(1, 30), *streams[-1][:4]]
            streams.append(tokens(list(model.generate_sync(path, options(max_tokens=8, branch=3)))))
    assert streams[:2] == streams[2:]
    assert streams[1] != streams[0][4:]


def test_both_backends_draw_the_same_stream() -> None:
    streams = {}
    for backend in ("hf", "mlx"):
        with load(tiny_path("llama"), backend=backend, threads=1) as model:
            streams[backend] = tokens(list(model.generate_sync(ids(1, 30), options())))
    assert streams["hf"] == streams["mlx"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "settings", [{"repetition_penalty": 1.4}, {"repetition_penalty": 1.2, "suppress_tokens": list(range(40, 90))}]
)
def test_greedy_answers_with_penalties_equal_those_of_transformers(model: LanguageModel, settings: dict[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    theirs = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32)
    for seed in range(3):
        prompt = ids(seed, 25)
        with torch.no_grad():
            answer = theirs.generate(
                torch.tensor([prompt]), attention_mask=torch.ones((1, len(prompt)), dtype=torch.long),
                do_sample=False, max_new_tokens=16, min_new_tokens=16, pad_token_id=0, eos_token_id=None, **settings,
            )[0, len(prompt):].tolist()  # fmt: skip
        chosen = GenerationOptions.from_mapping({**settings, "do_sample": False, "max_new_tokens": 16, "ignore_eos": True})
        model.clear_cache()
        assert tokens(list(model.generate_sync(prompt, chosen))) == answer
        assert tokens(list(model.generate_sync(prompt, chosen))) == answer  # the normaliser is cached too


def test_ids_outside_the_vocabulary_are_refused_before_compute(model: LanguageModel) -> None:
    vocab = model.info.vocab_size
    before = model.metrics()
    for sampling in (
        SamplingOptions(logit_bias={vocab: 1.0}),
        SamplingOptions(banned_tokens=(vocab + 5,)),
        SamplingOptions(banned_tokens=tuple(range(vocab))),
        SamplingOptions(banned_tokens=(5,), logit_bias={5: 1.0}),
        SamplingOptions(logit_bias=dict.fromkeys(range(vocab), -1e30)),
        SamplingOptions(banned_tokens=tuple(range(9)), logit_bias=dict.fromkeys(range(vocab), -1e10)),
        SamplingOptions(dry_multiplier=1.0, dry_breakers=("no token has this in it",)),
    ):
        with pytest.raises(InvalidRequestError):
            list(model.generate_sync(ids(1, 5), options(sampling=sampling)))
    assert model.metrics().tokens_computed == before.tokens_computed


def test_options_of_the_call_and_the_session_take_precedence_and_their_sources_are_reported(model: LanguageModel) -> None:
    resolved = model.resolve_options({"temperature": 0.3}, session={"top_p": 0.5})
    assert resolved.sources["sampling.temperature"] == "call"
    assert resolved.sources["sampling.top_p"] == "session"
    assert resolved.options.sampling.temperature == 0.3
    assert model.own_options == GenerationOptions()


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_an_invalid_generation_config_gives_warnings_and_the_model_works(tmp_path: Path, backend: str) -> None:
    folder = Path(shutil.copytree(tiny_path("llama"), tmp_path / "poor"))
    poor = {"do_sample": True, "temperature": -1, "top_k": 50.0, "suppress_tokens": [99_999], "max_new_tokens": 0}
    (folder / "generation_config.json").write_text(json.dumps(poor), "utf-8")
    with load(folder, backend=backend, threads=1) as model:
        assert model.own_options == GenerationOptions(sampling=SamplingOptions(top_k=50))
        told = [warning for warning in model.info.warnings if warning.startswith("generation_config.json: ")]
        assert [warning.split()[1] for warning in told] == ["temperature", "max_new_tokens", "suppress_tokens"]
        assert len(list(model.generate_sync(ids(1, 5), GenerationOptions(max_tokens=3, ignore_eos=True)))) == 3
