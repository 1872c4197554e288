"""Against llama.cpp's own server; `make test-llama` makes its environment, ELSEWISE_LLAMA_CPP is its path; SmolLM2."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import Grammar, LanguageModel, ModelShelf, UnsupportedFeatureError, connect
from tests.runtime.remote.test_sessions import talk

VENV = os.environ.get("ELSEWISE_LLAMA_CPP", "")
CLOSED_SECONDS = 10  # llama.cpp checks for closed connections once a second
TOLERANCE = 1e-2  # nats: llama.cpp does not compute attention in float32 throughout
CHINESE, FACES = "你好世界，你好世界，你好世界，你好", "Four smiling faces: 😀😀😀😀"
PROMPTS = ("The capital of", "Once upon é", "def f(x):", CHINESE, FACES)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not VENV, reason="make test-llama makes an environment with llama.cpp and sets ELSEWISE_LLAMA_CPP"),
    pytest.mark.timeout(900),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = Path(__file__).parents[3] / "packaging" / "llama_cpp_server.py"
    given = [ModelShelf().folder("smollm2") / "source.gguf", tmp_path_factory.mktemp("llama") / "smollm2.gguf"]
    command = [str(Path(VENV).absolute() / "bin" / "python"), str(program), *map(str, given)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdout is not None
        try:
            url = next(line.strip() for line in process.stdout if line.startswith("http"))
            yield url
        finally:
            process.kill()


@pytest.fixture(scope="module", params=["smollm2", "server"])
def remote(address: str, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with connect(address, tokenizer=request.param) as made:
        yield made


def test_info_of_llama_cpp_and_the_refusal_to_score(remote: LanguageModel) -> None:
    assert remote.info.backend == "llama.cpp"
    assert (remote.info.vocab_size, remote.info.context_length) == (49_152, 2048)
    with pytest.raises(UnsupportedFeatureError, match="does not score given texts"):
        remote.score_sync([5, 6])


def test_log_probabilities_agree_with_transformers(
    remote: LanguageModel, local: LanguageModel, tell: Callable[[str], None]
) -> None:
    largest = 0.0
    for prompt in PROMPTS:
        ids = local.tokenize(prompt)
        assert remote.tokenize(prompt) == ids
        whole, theirs = local.next_token_logprobs_uncached(ids), remote.top_logprobs_sync(ids, 200)
        largest = max(largest, float(np.abs(whole[theirs.ids] - theirs.logprobs).max()))
        assert theirs.tail_mass == pytest.approx(local.top_logprobs_sync(ids, 200).tail_mass, abs=TOLERANCE)
    tell(f"llama.cpp: largest difference of {len(PROMPTS)} x 200 log-probabilities from transformers: {largest:.1e} nats")
    assert largest < TOLERANCE


@pytest.mark.parametrize("prompt", PROMPTS)
def test_greedy_answers_contain_all_tokens_of_split_characters(
    remote: LanguageModel, local: LanguageModel, prompt: str
) -> None:
    options: dict[str, Any] = {"max_tokens": 15, "temperature": 0.0}
    ids = local.tokenize(prompt)
    ours, theirs = list(local.generate_sync(ids, **options)), list(remote.generate_sync(ids, **options))
    shown = "".join(record.text for record in ours).removesuffix("\ufffd")  # an unfinished last character is not sent
    assert "".join(record.text for record in theirs) == shown
    assert [record.token_id for record in theirs] == [record.token_id for record in ours][: len(theirs)]
    assert len(theirs) >= 13
    known = [(a.logprob, b.logprob) for a, b in zip(ours, theirs, strict=False) if b.logprob is not None]
    a, b = np.array(known, np.float32).T
    np.testing.assert_allclose(a, b, atol=TOLERANCE)


def test_sampling_here_equals_sampling_by_a_local_model(address: str, local: LanguageModel) -> None:
    options: dict[str, Any] = {"max_tokens": 15, "temperature": 0.8, "top_k": 20, "seed": 5}
    with connect(address, tokenizer="smollm2", sampling="here") as remote:
        for prompt in PROMPTS:
            ids = local.tokenize(prompt)
            ours, theirs = (list(model.generate_sync(ids, **options)) for model in (local, remote))
            assert [record.token_id for record in theirs] == [record.token_id for record in ours]


def test_chat_equals_the_local_model_and_a_grammar_is_followed(remote: LanguageModel, local: LanguageModel) -> None:
    messages = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
    assert remote.render_chat(messages) == local.render_chat(messages)
    ours, theirs = (model.complete_sync(messages, max_tokens=40, temperature=0.0) for model in (local, remote))
    assert (theirs, theirs.finish_reason) == (ours, ours.finish_reason)
    schema = {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"], "additionalProperties": False}
    answer = remote.complete_sync(messages, max_tokens=60, grammar=Grammar.json_schema(schema), temperature=0.0)
    assert list(json.loads(answer)) == ["wet"]


def test_cached_tokens_are_reported(remote: LanguageModel, local: LanguageModel) -> None:
    ids = local.tokenize("Water is wet, and so are the waters. " * 20)[:150]
    for _ in range(2):
        list(remote.generate_sync(ids, max_tokens=2, temperature=0.0))
    assert (remote.metrics().recent[-1].reused or 0) >= 140


def test_a_session_and_its_fork_equal_those_of_a_local_model(remote: LanguageModel, local: LanguageModel) -> None:
    assert asyncio.run(talk(remote)) == asyncio.run(talk(local))


def test_closing_an_answer_stops_the_generation(remote: LanguageModel, address: str, tell: Callable[[str], None]) -> None:
    async def begin() -> None:
        async with aclosing(remote.generate([5, 6, 7], max_tokens=1500, ignore_eos=True)) as records:
            await anext(records)

    asyncio.run(begin())
    ended = time.monotonic()
    while any(slot["is_processing"] for slot in slots(address)):  # for minutes, if the answer continued
        assert time.monotonic() - ended < CLOSED_SECONDS
        time.sleep(0.05)
    tell(f"llama.cpp: a closed answer stops after {time.monotonic() - ended:.1f} s")


def slots(address: str) -> list[dict[str, bool]]:
    with urllib.request.urlopen(address + "/slots", timeout=10) as page:
        found: list[dict[str, bool]] = json.loads(page.read())
        return found
