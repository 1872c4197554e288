"""Draft models with other weights, and models that do not support speculation, on the real backends."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import LanguageModel, UnsupportedFeatureError, load
from tests.fakes import settled, some_ids
from tests.runtime.speculation.test_speculation import PLAIN, assert_same, speculating
from tests.tiny_models import tiny_path

WEIGHTS = "model.safetensors"
PROMPT = some_ids(6, 30)
NEW = 40  # tokens of each answer
both_backends = pytest.mark.parametrize("backend", ["hf", "mlx"])


@pytest.fixture(scope="module")
def near(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama with slightly changed weights: as a draft model it guesses some of the tokens right."""
    folder = tmp_path_factory.mktemp("drafts") / "near"
    shutil.copytree(tiny_path("llama"), folder)
    noise = np.random.default_rng(2)
    weights = load_file(folder / WEIGHTS)
    moved = {name: (a + noise.normal(0, 0.01, a.shape)).astype(a.dtype) for name, a in weights.items()}
    save_file(moved, folder / WEIGHTS, {"format": "pt"})
    return folder


def guessed_one_by_one(draft: LanguageModel, said: list[int]) -> tuple[int, int]:
    """How many tokens of a known answer a draft model guesses, one at a time, and how many of them are right."""
    made = right = 0
    at = 1  # the first token comes from the forward of the prompt
    while at < len(said) - 1:  # the last token is not guessed
        hit = int(draft.next_token_logprobs_sync([*PROMPT, *said[:at]]).argmax()) == said[at]
        made, right, at = made + 1, right + hit, at + 1 + hit
    return made, right


@pytest.mark.slow
@both_backends
@pytest.mark.parametrize("which", ["qwen3", "near"])
def test_greedy_answers_are_the_same_with_any_draft_model(backend: str, which: str, near: Path) -> None:
    # given the plain answer of the model, and how many of its tokens the draft model would have guessed
    folder = near if which == "near" else tiny_path(which)
    with load(tiny_path("llama"), backend=backend) as model:
        plain = list(model.generate_sync(PROMPT, PLAIN))
    assert len(plain) == NEW
    with load(folder, backend=backend) as draft:
        wanted = guessed_one_by_one(draft, [record.token_id for record in plain])
    assert (wanted[1] > 5) is (which == "near")
    with load(tiny_path("llama"), backend=backend, draft_model=str(folder)) as model:
        assert_same(list(model.generate_sync(PROMPT, PLAIN)), plain)
        for several in (1, 4):
            model.clear_cache()
            before = settled(model)[0]
            # when the draft model guesses
            got = list(model.generate_sync(PROMPT, speculating(method="draft", num_tokens=several)))
            # then the answer is the same, and guesses are counted as drafted and accepted
            assert_same(got, plain)
            after = settled(model)[0]
            drafted, accepted = after.tokens_drafted - before.tokens_drafted, after.tokens_accepted - before.tokens_accepted
            assert 0 <= accepted < drafted
            if several == 1:
                assert (drafted, accepted) == wanted
                assert after.acceptance_rate == accepted / drafted
            assert after.forward_calls - before.forward_calls == NEW - accepted
            assert after.tokens_computed - before.tokens_computed == len(PROMPT) + NEW - 1 + drafted - accepted


@pytest.mark.sampled(1)
@both_backends
@pytest.mark.parametrize("name", ["mamba", "lfm2"])
def test_speculation_with_a_recurrent_model_is_refused_before_any_compute(backend: str, name: str) -> None:
    with load(tiny_path(name), backend=backend) as model:
        for method in ("auto", "prompt_lookup", "draft"):
            with pytest.raises(UnsupportedFeatureError, match=f"tiny-{name}.*has recurrent state; leave `speculative` out"):
                next(iter(model.generate_sync(PROMPT, speculating(method=method))))
        assert settled(model)[0].tokens_computed == 0
        assert settled(model)[0].tokens_drafted == 0
        # and without speculation it answers as usual
        assert len(list(model.generate_sync(PROMPT, PLAIN))) == NEW
