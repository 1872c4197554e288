"""Combined options: branches, batches, grammars, adapters, stages, speculation and penalties."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from runtime import BeamOptions, GenerationOptions, Grammar, LanguageModel, SamplingOptions, load
from runtime.branches import Branches
from runtime.options.speculation import SpeculativeOptions
from runtime.records import TokenRecord
from tests.fakes import fake_model, local, some_ids
from tests.runtime.adapters.makers import adapters_of
from tests.runtime.adapters.toys import toy_adapter
from tests.tiny_models import tiny_path

PROMPT = [7, 8, 9, 7, 8, 9, 7, 8]
GRAMMAR = Grammar.regex("[a-f]{3}(x|yz)+[0-9]{2,9}")
OPTIONS = GenerationOptions(max_tokens=14, seed=3, resolve=False)
GUESSING = SpeculativeOptions()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    root: Path = tmp_path_factory.mktemp("combinations")
    with fake_model() as made:
        for seed, name in enumerate("AB"):
            made.load_adapter(made.add_adapter(toy_adapter(root / name, seed)))
        yield made


def said(model: LanguageModel, prompt: list[int], options: GenerationOptions) -> list[TokenRecord]:
    model.clear_cache()
    return list(model.generate_sync(prompt, options))


def ids(records: list[TokenRecord]) -> list[int]:
    return [record.token_id for record in records]


def gathered(branches: Branches[TokenRecord]) -> dict[int, list[int]]:
    async def gather() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        async for number, record in branches:
            found.setdefault(number, []).append(record.token_id)
        return found

    return asyncio.run(gather())


@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{"grammar": GRAMMAR}, {"adapters": ("A", ("B", 0.5))}, {"grammar": GRAMMAR, "adapters": ("A",)}]
)
def test_branches_and_batches_with_a_grammar_and_adapters_are_the_same_as_alone(
    model: LanguageModel, more: dict[str, object]
) -> None:
    options = replace(OPTIONS, **more)  # type: ignore[arg-type]  # fields of it
    alone = {k: ids(said(model, PROMPT, replace(options, branch=k))) for k in range(4)}
    assert len({tuple(answer) for answer in alone.values()}) > 1
    model.clear_cache()
    assert gathered(model.continue_many(PROMPT, 4, options)) == alone
    # different prompts, each with its own options
    prompts = [some_ids(seed, 5 + seed) for seed in range(3)]
    each = [options, OPTIONS, replace(options, seed=8)]
    expected = {i: ids(said(model, prompt, own)) for i, (prompt, own) in enumerate(zip(prompts, each, strict=True))}
    model.clear_cache()
    assert gathered(model.generate_many(prompts, each)) == expected


def test_beams_under_adapters_are_those_of_the_uncached_model(model: LanguageModel) -> None:
    stack = ("A", ("B", 0.5))
    found = asyncio.run(model.beam_generate(PROMPT, BeamOptions(3, 4, ignore_eos=True), adapters=stack))
    beams: list[tuple[float, list[int]]] = [(0.0, [])]
    for _ in range(4):
        longer = []
        for total, path in beams:
            row = model.next_token_logprobs_uncached([*PROMPT, *path], adapters=stack)
            longer += [(total + float(row[token]), [*path, int(token)]) for token in np.argsort(-row)[:3]]
        beams = sorted(longer, reverse=True)[:3]
    assert [one.ids for one in found] == [path for _, path in beams]
    np.testing.assert_allclose([one.logprob for one in found], [total for total, _ in beams], atol=1e-4)


@pytest.mark.parametrize(
    "more", [{"grammar": GRAMMAR}, {"speculative": GUESSING}, {"grammar": GRAMMAR, "speculative": GUESSING}]
)
def test_stages_report_the_draw_that_was_made_and_do_not_change_it(model: LanguageModel, more: dict[str, object]) -> None:
    sampling = SamplingOptions(temperature=0.8, top_k=20, top_p=0.9)
    plain = said(model, PROMPT, replace(OPTIONS, sampling=sampling, grammar=more.get("grammar")))  # type: ignore[arg-type]  # one
    told = said(model, PROMPT, replace(OPTIONS, sampling=sampling, stages=True, **more))  # type: ignore[arg-type]  # fields of it
    assert ids(told) == ids(plain)
    assert all(record.stages for record in told)
    assert {record.redrawn for record in told} - {None}
    assert all(record.redrawn in (None, record.token_id) for record in told)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_speculation_does_not_change_answers_with_penalties(model: LanguageModel, temperature: float) -> None:
    for sampling in (
        SamplingOptions(temperature=temperature, repetition_penalty=1.3),
        SamplingOptions(temperature=temperature, presence_penalty=0.8, frequency_penalty=0.4),
    ):
        options = replace(OPTIONS, sampling=sampling, max_tokens=40, ignore_eos=True)
        expected = ids(said(model, PROMPT, options))
        drafted = model.metrics().tokens_drafted
        assert ids(said(model, PROMPT, replace(options, speculative=GUESSING))) == expected
        assert model.metrics().tokens_drafted > drafted


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_embeddings_under_adapters_are_those_of_merged_weights(backend: str, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    texts = ["The parser reads a file.", "x"]
    a, b = adapters_of("llama", tmp_path)
    with load(tiny_path("llama"), backend=backend) as model:
        base = model.embed_sync(texts)
        for folder, scale in ((a, 0.5), (b, -1.0)):
            model.push_lora(model.add_adapter(folder), scale)
        got = model.embed_sync(texts)
        reference = AutoModelForCausalLM.from_pretrained(tiny_path("llama"), dtype=torch.float32).eval()
        entries = [(local(model).adapters.registry.find(name).header.read(), scale) for name, scale in model.lora_stack]
        paths = [model.tokenize(text) for text in texts]
    with torch.inference_mode():
        weights = dict(reference.named_parameters())
        for adapter, scale in entries:
            for path, pair in adapter.modules.items():
                weights[f"{path}.weight"] += torch.from_numpy(scale * pair.scaling * (pair.b @ pair.a))
        states = [reference(torch.tensor([path]), output_hidden_states=True).hidden_states[-1][0, -1] for path in paths]
        expected = torch.stack([torch.nn.functional.normalize(state, dim=0) for state in states]).numpy()
    np.testing.assert_allclose(got, expected, atol=2e-5)
    assert np.abs(got - base).max() > 1e-3
