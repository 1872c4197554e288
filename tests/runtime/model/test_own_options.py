"""A model's own generation_config.json: draws under it equal those of transformers' `generate` with the same file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from runtime import LanguageModel, load
from runtime.options.generation import GenerationOptions
from runtime.records import TokenRecord
from runtime.sampling.chain import uniform
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

BACKENDS = ("hf", "mlx")
BORDER = 1e-3  # of probability: log-probabilities within 1e-4 move the borders between tokens by less
GREEDY: list[dict[str, Any]] = [
    {"do_sample": False, "max_new_tokens": 14},
    {
        "do_sample": False,
        "max_new_tokens": 14,
        "temperature": 0.3,
        "top_k": 2,
        "top_p": 0.5,
    },  # greedy decoding ignores the last three
    {"do_sample": False, "max_new_tokens": 20, "repetition_penalty": 1.4, "suppress_tokens": list(range(40, 90))},
    {"do_sample": False, "max_new_tokens": 60, "repetition_penalty": 1.2, "eos_token_id": list(range(300, 400))},
]
SAMPLED: list[dict[str, Any]] = [
    {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "max_new_tokens": 16},
    {"do_sample": True, "temperature": 1.4, "top_k": 0, "min_p": 0.02, "repetition_penalty": 1.2, "max_new_tokens": 16},
    {"do_sample": True, "top_k": 60, "typical_p": 0.8, "suppress_tokens": [3, 4, 5], "max_new_tokens": 16},
]


def folder_with(config: dict[str, Any], at: Path) -> Path:
    """The tiny llama with this generation_config.json."""
    folder = Path(shutil.copytree(tiny_path("llama"), at / "model"))
    base = {"eos_token_id": 2, "bos_token_id": 0, "pad_token_id": 0}
    (folder / "generation_config.json").write_text(json.dumps(base | config), "utf-8")
    return folder


@contextmanager
def transformers_model(folder: Path) -> Iterator[Any]:
    """The model of transformers, which reads the file by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.inference_mode():
        yield AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def generated(theirs: Any, prompt: list[int], **more: Any) -> Any:
    import torch

    ids = torch.tensor([prompt])
    return theirs.generate(ids, attention_mask=torch.ones_like(ids), **more)


def answered(model: LanguageModel, prompt: list[int], **changes: Any) -> list[TokenRecord]:
    return list(model.generate_sync(prompt, GenerationOptions(**changes)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("config", GREEDY, ids=lambda config: "-".join(list(config)[1:]))
def test_greedy_answers_are_those_of_transformers(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = folder_with(config, tmp_path)
    prompts = [[int(i) for i in random_ids(seed, 20 + seed)] for seed in range(3)]
    with transformers_model(folder) as theirs:
        expected = [generated(theirs, prompt)[0, len(prompt) :].tolist() for prompt in prompts]
    for backend in BACKENDS:
        with load(folder, backend=backend, threads=1) as model:
            for prompt, answer in zip(prompts, expected, strict=True):
                records = answered(model, prompt)
                assert [record.token_id for record in records] == answer
                ended = answer[-1] in model.eos_token_ids
                assert records[-1].finish_reason == ("eos" if ended else "length")
                assert ended or len(answer) == config["max_new_tokens"]
    assert len({tuple(answer) for answer in expected}) == 3


@pytest.mark.slow
@pytest.mark.parametrize("config", SAMPLED, ids=lambda config: "-".join(list(config)[1:]))
def test_every_draw_falls_into_the_interval_of_its_token_in_the_distribution_of_transformers(
    tmp_path: Path, config: dict[str, Any]
) -> None:
    """Seeds cannot be compared; the random number of each draw and the distribution it falls into can."""
    folder = folder_with(config, tmp_path)
    prompt = [int(i) for i in random_ids(7, 24)]
    said: list[list[TokenRecord]] = []
    for backend in BACKENDS:
        with load(folder, backend=backend, threads=1) as model:
            said.append(answered(model, prompt, seed=77))
            sources = model.resolve_options({}).sources
            names = {"temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty"} & set(config)
            assert {sources[f"sampling.{name}"] for name in names} == {"model"}
    assert [r.token_id for r in said[0]] == [r.token_id for r in said[1]]
    with transformers_model(folder) as theirs:
        path = list(prompt)
        for record in said[0]:
            out = generated(theirs, path, max_new_tokens=1, output_scores=True, return_dict_in_generate=True)
            shares = out.scores[0][0].double().softmax(0).numpy()
            low, high = interval(shares, record.token_id)
            assert low - BORDER <= uniform(77, len(path)) <= high + BORDER
            path.append(record.token_id)
    assert len(said[0]) == config["max_new_tokens"] or said[0][-1].finish_reason == "eos"


def interval(shares: npt.NDArray[np.float64], token: int) -> tuple[float, float]:
    """The interval of random numbers for which a token is drawn: tokens by falling probability, ties by id."""
    assert shares[token] > 0, "transformers cuts it"
    order = np.lexsort((np.arange(len(shares)), -shares))
    reached = np.cumsum(shares[order])
    at = int(np.flatnonzero(order == token)[0])
    return float(reached[at] - shares[token]), float(reached[at])


def test_a_call_or_a_preset_takes_precedence_over_the_file(tmp_path: Path) -> None:
    folder = folder_with({"do_sample": True, "temperature": 1.9, "top_k": 3, "max_new_tokens": 9}, tmp_path)
    prompt = [int(i) for i in random_ids(8, 12)]
    with load(folder, backend="hf", threads=1) as model:
        resolved = model.resolve_options({"temperature": 0.0}, preset={"max_tokens": 4})
        assert resolved.sources["sampling.temperature"] == "call"
        assert resolved.sources["max_tokens"] == "preset"
        assert resolved.sources["sampling.top_k"] == "model"
        greedy = [r.token_id for r in model.generate_sync(prompt, resolved.options)]
        assert (
            greedy
            == [r.token_id for r in model.generate_sync(prompt, GenerationOptions.from_mapping({"do_sample": False}))][:4]
        )
        # and with resolve=False only the call counts, not the file
        assert len(answered(model, prompt, resolve=False, ignore_eos=True, max_tokens=12, seed=1)) == 12


def test_settings_of_the_file_that_are_not_supported_give_warnings(tmp_path: Path) -> None:
    config = {
        "do_sample": True, "top_k": 7, "no_repeat_ngram_size": 3, "num_beams": 4, "begin_suppress_tokens": [4],
        "min_new_tokens": 5, "num_return_sequences": 1, "penalty_alpha": None, "use_cache": True, "max_length": 20,
        "transformers_version": "5.0", "bad_words_ids": [[9], [11]], "length_penalty": 1.0, "stop_strings": ["zq"],
    }  # fmt: skip
    folder = folder_with(config, tmp_path)
    for backend in BACKENDS:
        with load(folder, backend=backend, threads=1) as model:
            told = {w.split()[1].partition("=")[0] for w in model.info.warnings if w.startswith("generation_config.json: ")}
            assert told == {"no_repeat_ngram_size", "num_beams", "begin_suppress_tokens", "min_new_tokens"}
            # and settings that are options of ours are used
            own = model.own_options
            assert (own.sampling.top_k, own.sampling.banned_tokens, own.stop) == (7, (9, 11), ("zq",))
