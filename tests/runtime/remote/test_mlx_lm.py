"""Against mlx_lm's own server, from the locked mlx-lm; SmolLM2 in float32 on both sides."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from importlib.util import find_spec

import numpy as np
import psutil
import pytest

from runtime import LanguageModel, ModelShelf, connect
from tests.runtime.remote.servers import free_port, is_healthy

START_SECONDS, CLOSED_SECONDS = 120, 10
TOLERANCE = 1e-3  # nats
PROMPTS = ("The capital of", "Once upon é", "你好世界，你好世界，你好世界，你好")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mlx_lm") is None, reason="mlx-lm is not installed"),
    pytest.mark.timeout(300),
]


@pytest.fixture
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    port, log = free_port(), tmp_path_factory.mktemp("mlx_lm") / "log.txt"
    url, began = f"http://127.0.0.1:{port}", time.monotonic()
    command = [sys.executable, "-m", "mlx_lm", "server", "--model", str(ModelShelf().folder("smollm2"))]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    with log.open("wb") as output, subprocess.Popen(command, env=environment, stdout=output, stderr=output) as process:
        try:
            while not is_healthy(url):
                assert process.poll() is None, log.read_text("utf-8", "replace")[-3000:]
                assert time.monotonic() - began < START_SECONDS
                time.sleep(0.1)
            with connect(url, tokenizer="smollm2") as made:
                yield made
        finally:
            process.kill()


def test_answers_of_mlx_lm_agree_with_transformers(
    remote: LanguageModel, local: LanguageModel, tell: Callable[[str], None]
) -> None:
    assert (remote.info.backend, remote.info.capabilities) == ("mlx_lm", ("top 11", "cached tokens"))
    largest = 0.0
    for prompt in PROMPTS:
        ids = local.tokenize(prompt)
        ours, theirs = local.next_token_logprobs_uncached(ids), remote.top_logprobs_sync(ids, 11)
        largest = max(largest, float(np.abs(ours[theirs.ids] - theirs.logprobs).max()))
        assert theirs.tail_mass == pytest.approx(local.top_logprobs_sync(ids, 11).tail_mass, abs=TOLERANCE)
        greedy = [
            "".join(record.text for record in model.generate_sync(ids, max_tokens=9, temperature=0.0))
            for model in (local, remote)
        ]
        assert greedy[1] == greedy[0].removeprefix(" ")  # mlx_lm drops the leading space
        assert remote.metrics().recent[-1].reused == len(ids) - 1  # cached by the query before
    tell(f"mlx_lm: largest difference of {len(PROMPTS)} x 11 log-probabilities from transformers: {largest:.1e} nats")
    assert largest < TOLERANCE
    messages = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
    assert remote.render_chat(messages) == local.render_chat(messages)
    said, answered = (model.complete_sync(messages, max_tokens=40, temperature=0.0) for model in (local, remote))
    assert answered == said

    async def begin() -> None:
        async with aclosing(remote.generate([5, 6, 7], max_tokens=1500, ignore_eos=True)) as records:
            await anext(records)

    (server,) = (child for child in psutil.Process().children() if "mlx_lm" in child.cmdline())
    asyncio.run(begin())
    closed = time.monotonic()
    while server.cpu_percent(0.2) > 20:  # for minutes, if the answer continued; mlx_lm has no metric for it
        assert time.monotonic() - closed < CLOSED_SECONDS
    tell(f"mlx_lm: a closed answer stops after {time.monotonic() - closed:.1f} s")
