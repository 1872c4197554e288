"""Client and server together: `connect` to our own server gives the results of the model itself."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing
from typing import Any

import numpy as np
import pytest

from runtime import GenerationOptions, Grammar, LanguageModel, Priority, SamplingOptions, connect, parse_tool_calls
from tests.app.serve.conftest import CALL, TOOL_TEMPLATE, TOOLS, Served
from tests.app.serve.test_metrics import figures
from tests.tiny_models import tiny_path

TEXT = "def read(self, size=-1):"
MESSAGES = [{"role": "user", "content": "Read a file"}]


@pytest.fixture(scope="module", params=["local", "server"])
def remote(served: Served, request: pytest.FixtureRequest) -> Iterator[LanguageModel]:
    with connect(served.url, tokenizer=tiny_path("llama") if request.param == "local" else "server") as made:
        assert made.info.backend == "elsewise"
        assert made.info.options["tokenizer"] == request.param
        yield made


def test_numbers(served: Served, remote: LanguageModel) -> None:
    model, ids = served.model, served.model.tokenize(TEXT)
    assert remote.tokenize(TEXT) == ids
    np.testing.assert_allclose(remote.next_token_logprobs_sync(ids), model.next_token_logprobs_sync(ids), atol=1e-5)
    ours, theirs = model.top_logprobs_sync(ids, 8, chosen=[3, 500]), remote.top_logprobs_sync(ids, 8, chosen=[3, 500])
    assert theirs.ids.tolist() == ours.ids.tolist()
    assert theirs.chosen == pytest.approx(ours.chosen, abs=1e-5)
    scored = list(zip(model.score_sync(ids, 3), remote.score_sync(ids, 3), strict=True))
    assert [b.rank for _, b in scored] == [a.rank for a, _ in scored]
    own = np.array([[a.logprob, b.logprob] for a, b in scored[1:]], np.float32)
    np.testing.assert_allclose(own[:, 0], own[:, 1], atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "max_tokens": 12},
        {"temperature": 0.9, "max_tokens": 30, "seed": 7},
        {"temperature": 0.9, "max_tokens": 30, "seed": 7, "ignore_eos": True, "top_k": 5},
        {"temperature": 0.0, "max_tokens": 20, "stop": ("e",)},
    ],
)
def test_answers(served: Served, remote: LanguageModel, options: dict[str, Any]) -> None:
    ids = served.model.tokenize(TEXT)
    ours, theirs = list(served.model.generate_sync(ids, **options)), list(remote.generate_sync(ids, **options))
    assert [(b.token_id, b.finish_reason) for b in theirs] == [(a.token_id, a.finish_reason) for a in ours]
    prompt = served.model.render_chat(MESSAGES)
    assert remote.render_chat(MESSAGES) == prompt


@pytest.mark.parametrize("tokenizer", [tiny_path("llama"), "server"])
def test_dry_sampled_on_the_client_knows_every_breaker_token(served: Served, tokenizer: Any) -> None:
    dry = SamplingOptions(temperature=0.0, dry_multiplier=2.0, dry_allowed_length=1, dry_breakers=("=", "a"))
    ids, options = served.model.tokenize(TEXT * 2), GenerationOptions(max_tokens=8, sampling=dry, seed=1, ignore_eos=True)
    ours = list(served.model.generate_sync(ids, options))
    with connect(served.url, tokenizer=tokenizer, sampling="here") as remote:
        assert [record.token_id for record in remote.generate_sync(ids, options)] == [record.token_id for record in ours]


def test_salts(served: Served, remote: LanguageModel) -> None:
    served.model.clear_cache()
    ids, options = served.model.tokenize(TEXT), GenerationOptions(max_tokens=2, sampling=SamplingOptions(temperature=0.0))

    async def reused(salt: str) -> int | None:
        async with aclosing(remote.continue_many_runs(ids, 1, options, cache_salt=salt)) as runs:
            async for _ in runs:
                pass
        return remote.metrics().recent[-1].reused

    assert [asyncio.run(reused(salt)) for salt in ("", "a", "b")] == [0, 0, 0]
    assert min(asyncio.run(reused(salt)) or 0 for salt in ("", "a", "b")) >= len(ids) - 1


def test_priorities(served: Served, remote: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Priority] = []
    own = LanguageModel.continue_many_runs

    def noting(*at: Any, **by: Any) -> Any:
        given.append(by["priority"])
        return own(*at, **by)

    monkeypatch.setattr(LanguageModel, "continue_many_runs", noting)
    ids = served.model.tokenize(TEXT)
    list(remote.generate_sync(ids, max_tokens=1))
    remote.top_logprobs_sync(ids, 2)
    assert given == [Priority.CHAT, Priority.INSPECTOR]


def test_grammars(served: Served, remote: LanguageModel) -> None:
    options = GenerationOptions(max_tokens=20, grammar=Grammar.regex("(yes|no)"), seed=3)
    assert remote.complete_sync(MESSAGES, options) == served.model.complete_sync(MESSAGES, options)
    lark = GenerationOptions(max_tokens=20, grammar=Grammar.lark('start: "maybe"'))
    assert remote.complete_sync(MESSAGES, lark) == "maybe"


@pytest.mark.slow
@pytest.mark.parametrize("tokenizer", ["local", "server"])
def test_tool_calls(tooled: Served, tokenizer: str) -> None:
    ways: dict[str, Any] = {
        "local": {"tokenizer": tiny_path("llama"), "chat_template": TOOL_TEMPLATE},
        "server": {"tokenizer": "server"},
    }
    options = GenerationOptions(max_tokens=200, grammar=Grammar.lark(f"start: {json.dumps(f'So: {CALL}')}"))
    with connect(tooled.url, **ways[tokenizer]) as remote:
        asked = remote.render_chat(MESSAGES, tools=TOOLS)
        assert asked == tooled.model.render_chat(MESSAGES, tools=TOOLS)
        assert asked != remote.render_chat(MESSAGES)
        answer = "".join(record.text for record in remote.generate_sync(asked, options) if record.finish_reason != "eos")
        said = parse_tool_calls(answer, tools=TOOLS)
        ((name, arguments),) = [(call.name, call.arguments) for call in said.calls]
        assert (said.text, name, arguments) == ("So: ", "double", {"x": 21})
        answered = [*MESSAGES, said.message(), {"role": "tool", "tool_call_id": said.calls[0].id, "content": "42"}]
        ids = remote.render_chat(answered, tools=TOOLS)
        assert ids == tooled.model.render_chat(answered, tools=TOOLS)
        assert len(list(remote.generate_sync(ids, max_tokens=3, ignore_eos=True))) == 3


def test_embeddings(served: Served, remote: LanguageModel) -> None:
    np.testing.assert_allclose(remote.embed_sync(["a", "bc"]), served.model.embed_sync(["a", "bc"]), atol=1e-5)


def test_a_stopped_answer_leaves_nothing_behind(served: Served, remote: LanguageModel, tell: Callable[[str], None]) -> None:
    async def begin() -> None:
        async with aclosing(remote.generate(served.model.tokenize(TEXT), max_tokens=2000, ignore_eos=True)) as records:
            await anext(records)
            assert figures(served)["vllm:num_requests_running"] == 1

    asyncio.run(begin())
    closed = time.monotonic()
    while figures(served)["vllm:num_requests_running"]:  # for half a minute, if it went on
        assert time.monotonic() - closed < 10
    tell(f"elsewise: a closed answer stops after {1000 * (time.monotonic() - closed):.0f} ms")
