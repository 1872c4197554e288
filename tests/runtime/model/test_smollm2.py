"""SmolLM2 through the whole model, against plain transformers: a few tokens, both backends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime.loading.folder import ModelFolder
from runtime.loading.source import resolve
from runtime.model import LocalModel, load
from runtime.options import GenerationOptions, SamplingOptions
from runtime.records import TokenRecord
from tests.runtime.backends.reference import log_softmax

pytestmark = pytest.mark.slow
TOLERANCE = 1e-3  # nats


@pytest.fixture(scope="module")
def folder() -> ModelFolder:
    return resolve("smollm2")  # where it is missing, the error names the command that fetches it


@pytest.fixture(scope="module")
def plain(folder: ModelFolder) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()


@pytest.fixture(scope="module", params=["hf", "mlx"])
def model(request: pytest.FixtureRequest, folder: ModelFolder) -> Iterator[LocalModel]:
    with load(folder.path, backend=request.param) as made:
        yield made


def expected(plain: Any, ids: list[int]) -> np.ndarray[Any, np.dtype[np.float32]]:
    import torch

    with torch.inference_mode():
        return log_softmax(plain(input_ids=torch.tensor([ids]), use_cache=False).logits[0].numpy())


def test_a_chat_turn_equals_plain_transformers(model: LocalModel, plain: Any) -> None:
    # given a short prompt, when it is scored, answered and branched
    ids = model.tokenize("The capital of France is")

    async def main() -> tuple[list[TokenRecord], list[TokenRecord], Any]:
        greedy = GenerationOptions(max_tokens=4, sampling=SamplingOptions(temperature=0.0), ignore_eos=True)
        scores = await model.score(ids)
        answer = [record async for record in model.generate(ids, greedy)]
        return scores, answer, await model.next_token_logprobs([*ids, answer[1].token_id])

    scores, answer, branch = asyncio.run(main())
    # then every number is the one of the plain model, and nothing was computed twice
    path = [*ids, *(record.token_id for record in answer)]
    rows = expected(plain, path)
    for at, record in enumerate([*scores, *answer]):
        if at:
            assert record.logprob == pytest.approx(float(rows[at - 1][path[at]]), abs=TOLERANCE)
            assert record.top_logprobs == pytest.approx(np.sort(rows[at - 1])[::-1][:10].tolist(), abs=TOLERANCE)
    assert [record.token_id for record in answer] == rows[len(ids) - 1 : -1].argmax(-1).tolist()
    assert answer[0].text == " Paris"
    other = [*ids, answer[1].token_id]
    np.testing.assert_allclose(branch, expected(plain, other)[-1], atol=TOLERANCE, rtol=0)
    assert model.metrics().tokens_computed == len(ids) + 3 + 1
