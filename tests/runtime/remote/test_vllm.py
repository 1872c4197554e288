"""Against a real vLLM; `make test-vllm` makes its environment, ELSEWISE_VLLM is its path; SmolLM2, float32 on both sides."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, aclosing, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime import GenerationOptions, Grammar, LanguageModel, ModelShelf, Priority, RuntimeFault, connect
from tests.pages import PAGES, blocks
from tests.runtime.remote.servers import free_port, is_healthy
from tests.runtime.remote.test_sessions import talk

VENV = os.environ.get("ELSEWISE_VLLM", "")
RUNNING = os.environ.get("ELSEWISE_VLLM_URL", "")  # the address of a server that already runs, started as below
START_SECONDS, END_SECONDS = 600, 20
TOLERANCE = 1e-3  # nats
STARTS, ENDS = ("The capital of", "Once upon", "In 1905,", "def f(x):"), ("", "a", "one", "is", "é")
PROMPTS = [f"{start} {end}" for start in STARTS for end in ENDS]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (VENV or RUNNING), reason="make test-vllm makes an environment with vLLM and sets ELSEWISE_VLLM"),
    pytest.mark.timeout(1800),
]


# With pipeline parallelism and `--enforce-eager`, vLLM starts, reports that it is healthy, and dies at the first request.
ONE = ("--enforce-eager", "--scheduling-policy", "priority")
TWO = (*("--pipeline-parallel-size", "2", "--nnodes", "2"), *("--distributed-executor-backend", "mp"))


@pytest.fixture(scope="module", params=["one process", "two nodes"])
def address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if RUNNING:
        if request.param == "two nodes":
            pytest.skip("the server of ELSEWISE_VLLM_URL is asked once")
        yield RUNNING
        return
    folder, port = tmp_path_factory.mktemp("vllm"), free_port()
    (folder / "tools.jinja").write_text(tool_template(), "utf-8")
    flags: list[tuple[str, ...]] = [
        ("--host", "127.0.0.1", "--port", str(port), "--chat-template", str(folder / "tools.jinja"))
    ]
    if request.param == "two nodes":  # without Ray, on one machine
        together = (*TWO, "--master-addr", "127.0.0.1", "--master-port", str(free_port()))
        flags = [(*flags[0], *together, "--node-rank", "0"), (*together, "--node-rank", "1", "--headless")]
    else:
        flags = [(*flags[0], *ONE)]
    logs = [folder / f"{rank}.txt" for rank in range(len(flags))]
    with ExitStack() as stack:
        nodes = [stack.enter_context(_node(log, *own)) for log, own in zip(logs, flags, strict=True)]
        url, began = f"http://127.0.0.1:{port}", time.monotonic()
        while not is_healthy(url):
            for node, log in zip(nodes, logs, strict=True):
                assert node.poll() is None, log.read_text("utf-8", "replace")[-3000:]
            assert time.monotonic() - began < START_SECONDS
            time.sleep(1)
        yield url


def tool_template() -> str:
    """The model's own chat template, preceded by the tools if there are any."""
    own = (ModelShelf().folder("smollm2") / "chat_template.jinja").read_text("utf-8")
    return "{% if tools %}{{ tools | tojson }}{% endif %}" + own


@contextmanager
def _node(log: Path, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """`vllm serve` with these flags; at the end its whole process group is killed."""
    command = [str(Path(VENV).absolute() / "bin" / "vllm"), "serve", str(ModelShelf().folder("smollm2"))]
    command += ["--served-model-name", "smol", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8"]
    command += ["--max-logprobs", "-1", "--generation-config", "vllm", "--enable-prompt-tokens-details", "--block-size", "32"]
    here = {"VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "VLLM_CPU_KVCACHE_SPACE": "1"}
    offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environment = {**os.environ, **offline, **here}
    environment.pop("PYTHONPATH", None)
    with (
        log.open("wb") as output,
        subprocess.Popen([*command, *flags], env=environment, stdout=output, stderr=output, start_new_session=True) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # including its workers


@pytest.fixture(scope="module", params=["smollm2", "server"])
def remote(address: str, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with connect(address, tokenizer=request.param) as made:
        yield made


@pytest.mark.skipif(not VENV, reason="only a server is there")
def test_flags_and_variables_of_the_documentation_exist_in_vllm() -> None:
    page = PAGES["docs/cluster.md"]
    shell = "".join(blocks(page, "bash")).replace("\\\n", " ")
    said = re.findall(r"`(--[a-z-]+)", page.partition("## Against a real vLLM")[0])
    wanted = {*re.findall(r" (--[a-z-]+)", shell), *said}
    command = [str(Path(VENV).absolute() / "bin" / "vllm"), "serve", "--help=all"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert len(wanted) > 10
    assert wanted - set(re.findall(r"--[a-z][a-z-]+", done.stdout)) == set()
    (variables,) = Path(VENV).glob("lib/python*/site-packages/vllm/envs.py")
    assert set(re.findall(r"`(VLLM_[A-Z_]+)`", page)) <= set(re.findall(r"VLLM_[A-Z_]+", variables.read_text("utf-8")))


def test_info_of_vllm_lists_its_capabilities(remote: LanguageModel) -> None:
    assert remote.info.backend == "vllm"
    assert (remote.info.vocab_size, remote.info.context_length) == (49_152, 2048)
    assert {"full vectors", "prompt log-probabilities", "ranks"} <= set(remote.info.capabilities)


def test_requests_with_a_priority_are_accepted(remote: LanguageModel) -> None:
    assert "takes a priority" in remote.info.capabilities  # with and without a scheduling policy for it
    assert len(list(remote.generate_sync([5, 6, 7], max_tokens=2, temperature=0.0))) == 2
    assert len(remote.score_sync([5, 6, 7], priority=Priority.BACKGROUND)) == 3


def test_log_probabilities_agree_with_transformers(
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


def test_scores_and_greedy_answers_equal_those_of_a_local_model(remote: LanguageModel, local: LanguageModel) -> None:
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


def test_chat_equals_the_local_model_and_a_grammar_is_followed(remote: LanguageModel, local: LanguageModel) -> None:
    messages = [{"role": "user", "content": "Is water wet? Answer yes or no."}]
    assert remote.render_chat(messages) == local.render_chat(messages)
    answer = remote.complete_sync(messages, max_tokens=8, grammar=Grammar.regex("(yes|no)"), temperature=0.0)
    assert answer in ("yes", "no")
    assert not answer.incomplete
    ours, theirs = (model.complete_sync(messages, max_tokens=40, temperature=0.0) for model in (local, remote))
    assert (theirs, theirs.finish_reason) == (ours, ours.finish_reason)


@pytest.mark.skipif(bool(RUNNING), reason="it was started with another template")
def test_tools_are_rendered_by_the_template_of_the_server(address: str) -> None:
    messages = [{"role": "user", "content": "Double 21."}]
    parameters = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    tools = [{"type": "function", "function": {"name": "double", "description": "2x é", "parameters": parameters}}]
    with (
        connect(address, tokenizer="smollm2", chat_template=tool_template()) as here,
        connect(address, tokenizer="server") as there,
    ):
        assert there.render_chat(messages, tools=tools) == here.render_chat(messages, tools=tools)
        assert there.render_chat(messages) == here.render_chat(messages) != here.render_chat(messages, tools=tools)


def test_cached_tokens_are_reported_and_a_full_context_is_refused(remote: LanguageModel, local: LanguageModel) -> None:
    ids = local.tokenize(" ".join(PROMPTS) * 3)[:200]
    for _ in range(2):
        list(remote.generate_sync(ids, max_tokens=2, temperature=0.0))
    assert (remote.metrics().recent[-1].reused or 0) >= 128
    with pytest.raises(RuntimeFault, match="do not fit into the context of 2,048"):
        remote.top_logprobs_sync([5] * 2048, 1)


def test_each_cache_salt_has_a_separate_cache(remote: LanguageModel, local: LanguageModel) -> None:
    ids, options = local.tokenize("Water is wet. " * 40)[:100], GenerationOptions(max_tokens=2)

    async def reused(salt: str) -> int:
        async with aclosing(remote.continue_many_runs(ids, 1, options, cache_salt=salt)) as runs:
            async for _ in runs:
                pass
        return remote.metrics().recent[-1].reused or 0

    salts = [f"{remote.info.options['tokenizer']} {each}" for each in "ab"]
    assert [asyncio.run(reused(salt)) for salt in salts] == [0, 0]
    assert [asyncio.run(reused(salt)) for salt in salts] == [96, 96]  # blocks of 32


def test_a_session_and_its_fork_equal_those_of_a_local_model(remote: LanguageModel, local: LanguageModel) -> None:
    assert asyncio.run(talk(remote)) == asyncio.run(talk(local))


def test_closing_an_answer_stops_the_generation_within_a_second(remote: LanguageModel, address: str) -> None:
    async def begin() -> None:
        async with aclosing(remote.generate([5, 6, 7], max_tokens=1500, ignore_eos=True)) as records:
            await anext(records)

    asyncio.run(begin())
    time.sleep(1)
    with urllib.request.urlopen(address + "/metrics", timeout=10) as page:
        lines = page.read().decode().splitlines()
    running = [float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running{")]
    assert running == [0.0]
