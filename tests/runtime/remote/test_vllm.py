"""Against a real vLLM, whose environment `make test-vllm` makes and ELSEWISE_VLLM names; SmolLM2 in float32 on both sides."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import Grammar, LanguageModel, ModelShelf, RuntimeFault, connect, load

VENV = os.environ.get("ELSEWISE_VLLM", "")
RUNNING = os.environ.get("ELSEWISE_VLLM_URL", "")  # of a server that runs already, started as below
START_SECONDS = 600
TOLERANCE = 1e-3  # nats
STARTS, ENDS = ("The capital of", "Once upon", "In 1905,", "def f(x):"), ("", "a", "one", "is", "é")
PROMPTS = [f"{start} {end}" for start in STARTS for end in ENDS]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (VENV or RUNNING), reason="make test-vllm makes an environment with vLLM and sets ELSEWISE_VLLM"),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if RUNNING:
        yield RUNNING
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "log.txt"
    command = [str(Path(VENV).absolute() / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(ModelShelf().folder("smollm2")), "--served-model-name", "smol", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8", "--enforce-eager"]
    command += ["--max-logprobs", "-1", "--generation-config", "vllm", "--enable-prompt-tokens-details", "--block-size", "32"]
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment = {**os.environ, **offline, "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment.pop("PYTHONPATH", None)
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as server:
        try:
            url, began = f"http://127.0.0.1:{port}", time.monotonic()
            while not _answers(url):
                assert server.poll() is None, log.read_text("utf-8", "replace")[-3000:]
                assert time.monotonic() - began < START_SECONDS
                time.sleep(1)
            yield url
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def local() -> Iterator[LanguageModel]:
    with load("smollm2", backend="hf", dtype="float32") as made:
        yield made


@pytest.fixture(scope="module", params=["smollm2", "server"])
def remote(address: str, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with connect(address, tokenizer=request.param) as made:
        yield made


def test_what_it_says_of_itself(remote: LanguageModel) -> None:
    assert remote.info.backend == "vllm"
    assert (remote.info.vocab_size, remote.info.context_length) == (49_152, 2048)
    assert {"full vectors", "prompt log-probabilities", "ranks"} <= set(remote.info.capabilities)


def test_log_probabilities_are_those_of_transformers(
    remote: LanguageModel, local: LanguageModel, tell: Callable[[str], None]
) -> None:
    largest = 0.0
    for prompt in PROMPTS:
        ids = local.tokenize(prompt)
        assert remote.tokenize(prompt) == ids
        difference = remote.next_token_logprobs_sync(ids) - local.next_token_logprobs_uncached(ids)
        largest = max(largest, float(np.abs(difference).max()))
        ours, theirs = local.top_logprobs_sync(ids, 20, chosen=[5, 9000]), remote.top_logprobs_sync(ids, 20, chosen=[5, 9000])
        assert theirs.tail_mass == pytest.approx(ours.tail_mass, abs=TOLERANCE)
        assert theirs.chosen == pytest.approx(ours.chosen, abs=TOLERANCE)
    tell(f"vLLM: largest difference of {len(PROMPTS)} x 49,152 log-probabilities from transformers: {largest:.1e} nats")
    assert largest < TOLERANCE


def test_scores_and_greedy_answers(remote: LanguageModel, local: LanguageModel) -> None:
    ids = local.tokenize("The quick brown fox jumps over the lazy dog, and the dog sleeps on.")
    ours, theirs = local.score_sync(ids, 5)[1:], remote.score_sync(ids, 5)[1:]
    pairs = np.array([[a.logprob, b.logprob] for a, b in zip(ours, theirs, strict=True)], np.float32)
    np.testing.assert_allclose(pairs[:, 0], pairs[:, 1], atol=TOLERANCE)
    assert [b.rank for b in theirs] == [a.rank for a in ours]
    for prompt in PROMPTS[:4]:
        options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0}
        start = local.tokenize(prompt)
        greedy = [record.token_id for record in local.generate_sync(start, **options)]
        assert [record.token_id for record in remote.generate_sync(start, **options)] == greedy


def test_chat_and_grammar(remote: LanguageModel, local: LanguageModel) -> None:
    messages = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
    assert remote.render_chat(messages) == local.render_chat(messages)
    answer = remote.complete_sync(messages, max_tokens=8, grammar=Grammar.regex("(yes|no)"), temperature=0.0)
    assert answer in ("yes", "no")
    assert not answer.incomplete
    ours, theirs = (model.complete_sync(messages, max_tokens=40, temperature=0.0) for model in (local, remote))
    assert (theirs, theirs.finish_reason) == (ours, ours.finish_reason)


def test_cached_tokens_and_refusals(remote: LanguageModel, local: LanguageModel) -> None:
    ids = local.tokenize(" ".join(PROMPTS) * 3)[:200]
    for _ in range(2):
        list(remote.generate_sync(ids, max_tokens=2, temperature=0.0))
    assert (remote.metrics().recent[-1].reused or 0) >= 128
    with pytest.raises(RuntimeFault, match="do not fit into the context of 2,048"):
        remote.top_logprobs_sync([5] * 2048, 1)


def test_a_closed_answer_stops_within_a_second(remote: LanguageModel, address: str) -> None:
    async def begin() -> None:
        async with aclosing(remote.generate([5, 6, 7], max_tokens=1500, ignore_eos=True)) as records:
            await anext(records)

    asyncio.run(begin())
    time.sleep(1)
    with urllib.request.urlopen(address + "/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    running = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")]
    assert running == [0.0]
