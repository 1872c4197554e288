from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import (
    FullVocabUnavailableError,
    GenerationOptions,
    Grammar,
    LanguageModel,
    PromptProgress,
    RemoteError,
    SamplingOptions,
    TokenRecord,
    UnsupportedFeatureError,
    connect,
)
from runtime.options.generation import DEFAULTS
from tests.runtime.remote.servers import Server, event, serving, start_events
from tests.runtime.remote.test_dialects import KINDS

PROMPT = "Once upon"
MESSAGES = [{"role": "user", "content": "Say something"}]


def told(record: TokenRecord) -> tuple[Any, ...]:
    return record.token_id, record.text, record.top_ids, record.finish_reason, record.incomplete


def nearly(records: list[TokenRecord]) -> list[Any]:
    return [pytest.approx(record.logprob, abs=1e-6) for record in records]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "max_tokens": 12},
        {"temperature": 0.9, "max_tokens": 40, "seed": 7},
        {"temperature": 1.0, "top_p": 0.5, "min_p": 0.01, "max_tokens": 20, "seed": 8},
        {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True},
        {"temperature": 0.8, "max_tokens": 60, "seed": 11, "stop": ("e", "\n")},
        {"temperature": 0.8, "max_tokens": 60, "seed": 3, "eos_token_ids": tuple(range(100, 130))},
        {"temperature": 0.0, "max_tokens": 5, "logit_bias": {5: 50.0}},
    ],
)
def test_a_remote_answer_equals_that_of_the_local_model(
    remote: LanguageModel, model: LanguageModel, options: dict[str, Any]
) -> None:
    ids = model.tokenize(PROMPT)
    ours, theirs = list(model.generate_sync(ids, **options)), list(remote.generate_sync(ids, **options))
    assert [record.logprob for record in theirs] == nearly(ours)
    if remote.info.options["tokenizer"] == "local":
        assert list(map(told, theirs)) == list(map(told, ours))
        ranks = [record.rank for record in ours]
        assert [record.rank for record in theirs] == [rank if rank and rank <= 20 else None for rank in ranks]
    else:  # tokens that are parts of a character have no texts of their own
        assert [record.token_id for record in theirs] == [record.token_id for record in ours]


@pytest.mark.slow
def test_chat_and_completion_equal_those_of_the_local_model(remote: LanguageModel, model: LanguageModel) -> None:
    options: dict[str, Any] = {"temperature": 0.0, "max_tokens": 9}
    assert remote.render_chat(MESSAGES) == model.render_chat(MESSAGES)
    ours, theirs = model.complete_sync(MESSAGES, **options), remote.complete_sync(MESSAGES, **options)
    assert theirs.finish_reason == ours.finish_reason
    if remote.info.options["tokenizer"] == "local":
        assert theirs == ours


def test_the_first_branch_uses_the_given_seed_and_the_others_derived_ones(remote: LanguageModel) -> None:
    async def ask() -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        async for branch, record in remote.continue_many([1, 2], 3, GenerationOptions(max_tokens=6, seed=5)):
            found.setdefault(branch, []).append(record.token_id)
        return found

    found = asyncio.run(ask())
    alone = [record.token_id for record in remote.generate_sync([1, 2], max_tokens=6, seed=5)]
    assert found[0] == alone
    assert len({tuple(ids) for ids in found.values()}) == 3
    assert asyncio.run(ask()) == found


def test_a_dropped_prompt_does_not_affect_the_other_answers(server: Server, folder: Path) -> None:
    async def ask(remote: LanguageModel) -> dict[int, int]:
        counts: dict[int, int] = {}
        answers = remote.generate_many([[1], "text", [3]], GenerationOptions(max_tokens=8, ignore_eos=True))
        async with aclosing(answers):
            async for number, _ in answers:
                counts[number] = counts.get(number, 0) + 1
                if number == 1:
                    answers.drop(1)
        await remote.close_async()
        return counts

    counts = asyncio.run(ask(connect(server.base_url, tokenizer=folder)))
    assert (counts[0], counts[2]) == (8, 8)
    assert counts.get(1, 0) <= 2


def test_closing_an_answer_stops_the_server(model: LanguageModel, folder: Path) -> None:
    async def ask(remote: LanguageModel, server: Server) -> None:
        async with aclosing(remote.generate([1], max_tokens=500, ignore_eos=True)) as records:
            await anext(records)
            assert server.running == 1
        await asyncio.to_thread(wait_until, lambda: server.running == 0, 1.0)
        await asyncio.to_thread(wait_until, lambda: remote.metrics().requests_cancelled == 1)
        await remote.close_async()

    with serving(model, pace=0.01) as server:
        asyncio.run(ask(connect(server.base_url, tokenizer=folder), server))


def test_closing_a_blocking_answer_stops_the_server(model: LanguageModel, folder: Path) -> None:
    with serving(model, pace=0.01) as server, connect(server.base_url, tokenizer=folder) as remote:
        records = remote.generate_sync([1], max_tokens=500, ignore_eos=True)
        next(records)
        records.close()
        wait_until(lambda: server.running == 0)


def test_an_answer_ends_at_the_context_length(remote: LanguageModel) -> None:
    last = list(remote.generate_sync([1] * 2044, max_tokens=50, ignore_eos=True))[-1]
    assert last.finish_reason == "context"


def test_timings_contain_the_seed_and_the_cached_tokens(remote: LanguageModel) -> None:
    heard: list[PromptProgress] = []
    list(remote.generate_sync([1, 2, 3, 4], GenerationOptions(max_tokens=3, seed=99), on_progress=heard.append))
    assert [(progress.done, progress.total) for progress in heard] == [(4, 4)]
    timings = remote.metrics().request(heard[0].request)
    assert timings is not None
    assert (timings.seed, timings.prompt_tokens, timings.reused, timings.computed) == (99, 4, 3, 1)


def test_cached_tokens_are_none_where_the_server_does_not_report_them(model: LanguageModel, folder: Path) -> None:
    heard: list[PromptProgress] = []
    with serving(model, cached=None) as server, connect(server.base_url, tokenizer=folder) as remote:
        list(remote.generate_sync([1, 2, 3, 4], max_tokens=3, on_progress=heard.append))
        metrics = remote.metrics()
        timings = metrics.request(heard[0].request)
    assert timings is not None
    assert (timings.reused, timings.computed, timings.queue_seconds) == (None, None, None)
    assert (heard[0].reused, heard[0].computed, metrics.last_reused, metrics.last_computed) == (None, None, None, None)


class Warming(Server):
    async def _whole(self, body: dict[str, Any]) -> dict[str, Any]:
        answer = await super()._whole(body)
        self.cached = len(body["prompt"])
        return answer


def test_sampling_here_counts_the_cached_tokens_of_the_first_request(model: LanguageModel, folder: Path) -> None:
    with serving(model, Warming) as server, connect(server.base_url, tokenizer=folder, sampling="here") as remote:
        server.cached = 0
        list(remote.generate_sync([1, 2, 3, 4], max_tokens=3, temperature=0.0, ignore_eos=True))
        (timings,) = remote.metrics().recent
    assert (timings.reused, timings.computed) == (0, 4)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("cap", [-1, 20])
@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0, "sampler": {"top_k": 100}, "max_tokens": 10},
        {"temperature": 1.3, "sampler": {"top_k": 20, "top_p": 0.9}, "max_tokens": 30, "seed": 5},
        {
            "temperature": 0.7,
            "sampler": {"top_k": 12, "min_p": 0.1, "typical_p": 0.9},
            "max_tokens": 30,
            "seed": 6,
            "branch": 2,
        },
        {"temperature": 1.0, "sampler": {"xtc_probability": 0.9, "top_k": 5}, "max_tokens": 20, "seed": 9, "stop": ("e",)},
        {"temperature": 1.0, "sampler": {"presence_penalty": 0.5, "dry_multiplier": 0.8}, "max_tokens": 12, "seed": 1},
        {"temperature": 1.0, "max_tokens": 12, "seed": 2, "stages": True},
    ],
)
def test_sampling_here_equals_sampling_by_a_local_model(
    model: LanguageModel, folder: Path, options: dict[str, Any], cap: int
) -> None:
    sampling = SamplingOptions(temperature=options["temperature"], **options.get("sampler", {}))
    rest = {name: value for name, value in options.items() if name not in ("temperature", "sampler")}
    chosen = GenerationOptions(sampling=sampling, **rest)
    with serving(model, cap=cap) as server, connect(server.base_url, tokenizer=folder, sampling="here") as remote:
        whole = "stages" in options or "presence_penalty" in options.get("sampler", {})
        if whole and cap > 0:
            with pytest.raises(FullVocabUnavailableError, match="a draw from them is exact"):
                list(remote.generate_sync([1, 2, 3], chosen))
            return
        ours, theirs = list(model.generate_sync([1, 2, 3], chosen)), list(remote.generate_sync([1, 2, 3], chosen))
        assert list(map(told, theirs)) == list(map(told, ours))
        assert [record.redrawn for record in theirs] == [record.redrawn for record in ours]


class Short(Server):
    """Gives at most one alternative, for any number requested."""

    async def _prompt(self, body: dict[str, Any]) -> list[int]:
        body["logprobs"] = min(body.get("logprobs") or 0, 1)
        return await super()._prompt(body)


@pytest.mark.parametrize("kind", ["mlx_lm", "openai"])
def test_sampling_here_is_refused_for_servers_without_token_ids(model: LanguageModel, folder: Path, kind: str) -> None:
    with (
        serving(model, KINDS[kind]) as server,
        pytest.raises(UnsupportedFeatureError, match="prompts and tokens as text"),
    ):
        connect(server.base_url, tokenizer=folder, sampling="here")


def test_sampling_here_with_dry_and_text_breakers_needs_token_bytes(server: Server) -> None:
    with connect(server.base_url, tokenizer="server", sampling="here") as remote:
        dry = SamplingOptions(dry_multiplier=0.8)
        with pytest.raises(UnsupportedFeatureError, match="does not tell the bytes of its tokens"):
            list(remote.generate_sync([1, 2, 3], GenerationOptions(max_tokens=1, ignore_eos=True, sampling=dry)))
        by_id = GenerationOptions(max_tokens=1, ignore_eos=True, sampling=replace(dry, dry_breakers=(10,)))
        assert len(list(remote.generate_sync([1, 2, 3], by_id))) == 1


def test_sampling_here_needs_eos_token_ids_or_ignore_eos(server: Server, model: LanguageModel) -> None:
    greedy: dict[str, Any] = {"max_tokens": 30, "temperature": 0.0}
    last = list(model.generate_sync([1, 2, 3], ignore_eos=True, **greedy))[9].token_id
    with connect(server.base_url, tokenizer="server", sampling="here") as remote:
        with pytest.raises(UnsupportedFeatureError, match="does not say what ends an answer"):
            list(remote.generate_sync([1, 2, 3], **greedy))
        records = list(remote.generate_sync([1, 2, 3], eos_token_ids=(last,), **greedy))
        assert (records[-1].token_id, records[-1].finish_reason) == (last, "eos")
        assert len(list(remote.generate_sync([1, 2, 3], ignore_eos=True, **greedy))) == 30


SETTINGS: dict[str, Any] = {
    "logit_bias": {5: 1.0},
    "banned_tokens": (5,),
    "repetition_penalty": 1.2,
    "presence_penalty": 0.5,
    "frequency_penalty": 0.5,
    "dry_multiplier": 0.8,
    "order": tuple(reversed(DEFAULTS["order"])),
    "temperature": 0.7,
    "top_p": 0.9,
    "min_p": 0.1,
    "typical_p": 0.5,
    "xtc_probability": 0.5,
}


@pytest.mark.parametrize("cap", [-1, 20])
def test_sampling_here_refuses_exactly_the_settings_listed_as_lacking(model: LanguageModel, folder: Path, cap: int) -> None:
    with serving(model, cap=cap) as server, connect(server.base_url, tokenizer=folder, sampling="here") as remote:
        refused = set()
        for name, value in SETTINGS.items():
            options = GenerationOptions(max_tokens=1, sampling=SamplingOptions(**{"top_k": 5, name: value}))
            try:
                list(remote.generate_sync([1, 2, 3], options))
            except (FullVocabUnavailableError, UnsupportedFeatureError):
                refused.add(name)
        assert refused == set(SETTINGS) & remote.lacks != set()


def test_sampling_here_refuses_a_list_of_alternatives_that_is_too_short(model: LanguageModel, folder: Path) -> None:
    with serving(model, Short, cap=20) as server, connect(server.base_url, tokenizer=folder, sampling="here") as remote:
        options = GenerationOptions(max_tokens=2, sampling=SamplingOptions(top_k=5))
        with pytest.raises(RemoteError, match=r"^.*[12] alternatives to draw from where"):
            list(remote.generate_sync([1, 2, 3], options))


@pytest.mark.parametrize(("text", "finish"), [("A", "grammar"), ("", "eos")])
def test_the_end_of_a_grammar_is_distinguished_from_an_eos(
    server: Server, remote: LanguageModel, text: str, finish: str
) -> None:
    async def last(writer: Any) -> None:
        start_events(writer)
        event(writer, {"choices": [{"index": 0, "text": text, "token_ids": [65], "finish_reason": "stop"}]})
        writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

    server.raw["/v1/completions"] = last
    answer = remote.complete_sync("x", GenerationOptions(grammar=Grammar.regex("A")))
    assert (answer, answer.finish_reason, answer.incomplete) == (text, finish, False)


def test_a_grammar_is_sent_to_the_server(server: Server, remote: LanguageModel) -> None:
    options = GenerationOptions(max_tokens=2, grammar=Grammar.regex("[ab]+"))
    list(remote.generate_sync([1], options))
    assert server.bodies("/v1/completions")[-1]["structured_outputs"] == {"regex": "[ab]+"}
    with pytest.raises(UnsupportedFeatureError, match="enforces no Lark grammar"):
        list(remote.generate_sync([1], GenerationOptions(grammar=Grammar.lark('start: "a"'))))


def test_greedy_requests_override_the_default_penalties_of_the_server(server: Server, remote: LanguageModel) -> None:
    list(remote.generate_sync([1], max_tokens=1, temperature=0.0, presence_penalty=0.5, top_p=0.5))
    body = server.bodies("/v1/completions")[-1]
    assert (body["repetition_penalty"], body["presence_penalty"], body["frequency_penalty"]) == (1.0, 0.5, 0.0)
    assert "top_p" not in body


@pytest.mark.parametrize("name", ["dry_multiplier", "penalty_window"])
def test_unsupported_penalties_are_refused_for_greedy_requests_too(remote: LanguageModel, name: str) -> None:
    settings: dict[str, Any] = {"temperature": 0.0, name: 1}
    sampling = SamplingOptions(**settings)
    with pytest.raises(UnsupportedFeatureError, match=f"no {name}"):
        list(remote.generate_sync([1], GenerationOptions(max_tokens=1, sampling=sampling)))


def test_empty_eos_token_ids_let_an_answer_continue(server: Server, folder: Path) -> None:
    endless: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20, "logit_bias": {257: 100.0}}  # the eos is always drawn
    with connect(server.base_url, tokenizer=folder) as remote:
        assert len(list(remote.generate_sync([1], **endless))) == 1
        assert len(list(remote.generate_sync([1], eos_token_ids=(), **endless))) == 20


@pytest.mark.parametrize("kind", KINDS)
def test_servers_that_ignore_ignore_eos_are_named_in_a_warning(model: LanguageModel, folder: Path, kind: str) -> None:
    with serving(model, KINDS[kind]) as server, connect(server.base_url, tokenizer=folder) as remote:
        told = [warning for warning in remote.info.warnings if "also with `ignore_eos`" in warning]
        assert len(told) == (kind in ("mlx_lm", "openai"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (GenerationOptions(sampling=SamplingOptions(typical_p=0.5)), "no typical_p"),
        (GenerationOptions(sampling=SamplingOptions(dry_multiplier=1.0)), "no dry_multiplier"),
        (GenerationOptions(adapters=(("other", 1.0),)), "no adapter 'other'"),
    ],
)
def test_options_that_the_server_does_not_support_are_refused(
    remote: LanguageModel, options: GenerationOptions, said: str
) -> None:
    with pytest.raises(Exception, match=said):
        list(remote.generate_sync([1], options))


def test_an_adapter_is_a_model_of_the_server(server: Server, folder: Path) -> None:
    server.models.append({**server.models[0], "id": "poet", "parent": "tiny"})
    with connect(server.base_url, tokenizer=folder) as remote:
        assert [adapter.name for adapter in remote.info.adapters] == ["poet"]
        list(remote.generate_sync([1], GenerationOptions(max_tokens=1, adapters=(("poet", 1.0),))))
        remote.top_logprobs_sync([1], 1, adapters=["poet"])
        assert [body["model"] for body in server.bodies("/v1/completions")[-2:]] == ["poet", "poet"]
        with pytest.raises(UnsupportedFeatureError, match="one adapter"):
            remote.top_logprobs_sync([1], 1, adapters=[("poet", 0.5)])


def wait_until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds
        time.sleep(0.01)
