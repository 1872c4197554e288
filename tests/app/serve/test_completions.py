"""/v1/completions returns the results of the library."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import GenerationOptions, LanguageModel, Priority, SamplingOptions, load, run_sync
from runtime.text.formats import CHAT_FORMATS
from tests.app.serve.conftest import Served, serving, tiny
from tests.pages import PAGES, blocks
from tests.tiny_models import tiny_path

PATH = "/v1/completions"
IDS = [336, 659, 480, 940, 5, 6, 7]
TEXT = "The module defines"
EXACT = 1e-5  # nats, of one row computed in different batches


def greedy(served: Served, ids: list[int], tokens: int) -> list[Any]:
    options = GenerationOptions(max_tokens=tokens, sampling=SamplingOptions(temperature=0.0))
    return list(served.model.generate_sync(ids, options))


def test_a_text_gets_the_continuation_of_the_library(served: Served) -> None:
    ids = served.model.tokenize(TEXT)
    records = greedy(served, ids, 6)
    answer = served.post(PATH, model=served.model.info.name, prompt=TEXT, max_tokens=6, temperature=0, return_token_ids=True)
    (choice,) = answer["choices"]
    assert choice["prompt_token_ids"] == ids
    assert choice["token_ids"] == [record.token_id for record in records]
    assert choice["text"] == "".join(record.text for record in records)
    assert (choice["finish_reason"], choice["logprobs"], answer["object"]) == ("length", None, "text_completion")
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (len(ids), 6, len(ids) + 6)


def test_log_probabilities_equal_those_of_the_library(served: Served) -> None:
    records = greedy(served, IDS, 3)
    body = {"prompt": IDS, "max_tokens": 3, "temperature": 0, "logprobs": 4, "return_tokens_as_token_ids": True}
    found = served.post(PATH, **body)["choices"][0]["logprobs"]
    assert found["tokens"] == [f"token_id:{record.token_id}" for record in records]
    for record, value, top in zip(records, found["token_logprobs"], found["top_logprobs"], strict=True):
        assert value == pytest.approx(record.logprob, abs=EXACT)
        expected = dict(zip(record.top_ids[:4], record.top_logprobs[:4], strict=True))
        assert top == pytest.approx({f"token_id:{token}": each for token, each in expected.items()}, abs=EXACT)


@pytest.mark.parametrize("wanted", [-1, 1000, 5000])
def test_the_whole_vocabulary_can_be_requested(served: Served, wanted: int) -> None:
    body = {"prompt": IDS, "max_tokens": 2, "temperature": 0, "logprobs": wanted, "return_tokens_as_token_ids": True}
    tops = served.post(PATH, **body)["choices"][0]["logprobs"]["top_logprobs"]
    path = list(IDS)
    for record, top in zip(greedy(served, IDS, 2), tops, strict=True):
        row = served.model.next_token_logprobs_sync(path)
        assert len(top) == served.model.info.vocab_size
        np.testing.assert_allclose([top[f"token_id:{i}"] for i in range(len(row))], row, atol=EXACT)
        path.append(record.token_id)


def test_chosen_ids_are_reported_beside_the_drawn_one(served: Served) -> None:
    body = {"prompt": IDS, "max_tokens": 1, "temperature": 0, "logprob_token_ids": [3, 999], "return_tokens_as_token_ids": True}
    (top,) = served.post(PATH, **body)["choices"][0]["logprobs"]["top_logprobs"]
    row = served.model.next_token_logprobs_sync(IDS)
    assert top == pytest.approx({f"token_id:{i}": float(row[i]) for i in (int(row.argmax()), 3, 999)}, abs=EXACT)


@pytest.mark.parametrize("alternatives", [0, 2, -1])
def test_a_prompt_is_scored_with_ranks(served: Served, alternatives: int) -> None:
    answer = served.post(PATH, prompt=IDS, max_tokens=1, prompt_logprobs=alternatives)
    entries = answer["choices"][0]["prompt_logprobs"]
    records = served.model.score_sync(IDS, max(alternatives, 0))
    assert entries[0] is None
    for entry, record in zip(entries[1:], records[1:], strict=True):
        own = entry[str(record.token_id)]
        assert (own["logprob"], own["rank"]) == (pytest.approx(record.logprob, abs=EXACT), record.rank)
        assert own["decoded_token"] == record.token_bytes.decode(errors="replace")
        assert {str(token) for token in record.top_ids} <= set(entry)
        if alternatives < 0:
            assert len(entry) == served.model.info.vocab_size


def test_an_echo_scores_the_prompt_without_drawing(served: Served) -> None:
    answer = served.post(PATH, prompt=TEXT, max_tokens=0, echo=True, logprobs=1)
    (choice,) = answer["choices"]
    records = served.model.score_sync(served.model.tokenize(TEXT), 1)
    assert choice["text"] == TEXT
    found = choice["logprobs"]
    assert found["token_logprobs"] == pytest.approx([record.logprob for record in records], abs=EXACT, nan_ok=True)
    assert found["text_offset"] == [sum(len(r.text) for r in records[:i]) for i in range(len(records))]
    assert found["top_logprobs"][0] is None
    assert answer["usage"]["completion_tokens"] == 0


def test_an_echo_precedes_the_generated_text(served: Served) -> None:
    plain = served.post(PATH, prompt=TEXT, max_tokens=3, temperature=0, logprobs=0)["choices"][0]
    echoed = served.post(PATH, prompt=TEXT, max_tokens=3, temperature=0, logprobs=0, echo=True)["choices"][0]
    assert echoed["text"] == TEXT + plain["text"]
    assert echoed["logprobs"]["token_logprobs"][-3:] == pytest.approx(plain["logprobs"]["token_logprobs"], abs=EXACT)


def test_cached_tokens_are_counted_exactly(served: Served) -> None:
    prompt = [11, 12, 13, 14, 15, 16, 17, 18]
    run_sync(served.model.reset_async_queries_async())
    served.model.clear_cache()
    counts = []
    for body in ({"prompt": prompt}, {"prompt": prompt}, {"prompt": [*prompt, 19, 20]}, {"prompt": [21, 22]}):
        usage = served.post(PATH, max_tokens=1, **body)["usage"]
        counts.append(usage["prompt_tokens_details"]["cached_tokens"])
    assert counts[0] == counts[3] == 0
    assert counts[1] in (len(prompt), len(prompt) - 1)  # its logits may be kept too
    assert counts[2] == len(prompt)


def test_a_request_with_a_smaller_priority_runs_first(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Priority] = []

    def noting(own: Any) -> Any:
        def call(*at: Any, **by: Any) -> Any:
            given.append(by["priority"])
            return own(*at, **by)

        return call

    for name in ("continue_many_runs", "score_run", "next_token_logprobs"):
        monkeypatch.setattr(LanguageModel, name, noting(getattr(LanguageModel, name)))
    for asked in ({}, {"priority": -7}, {"priority": 0}, {"priority": 3}):
        served.post(PATH, prompt=[5, 6], max_tokens=1, prompt_logprobs=0, logprob_token_ids=[3], **asked)
    usual, first, last = Priority.INSPECTOR, Priority.CHAT, Priority.BACKGROUND
    assert given == [usual] * 3 + [first] * 3 + [usual] * 3 + [last] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "asked"),
    [
        (PATH, {"prompt": [31, 32, 33, 34, 35, 36, 37, 38], "logprobs": 2}),
        (PATH, {"prompt": [31, 32, 33, 34, 35, 36, 37, 38], "logprobs": -1}),
        (PATH, {"prompt": [31, 32, 33, 34, 35, 36, 37, 38], "prompt_logprobs": 0}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Read"}], "logprobs": True}),
    ],
)
def test_a_request_finds_only_kv_cached_under_its_own_salt(served: Served, path: str, asked: dict[str, Any]) -> None:
    run_sync(served.model.reset_async_queries_async())
    served.model.clear_cache()
    cached, answers = {}, []
    for turn, salt in enumerate(({}, {"cache_salt": "a"}, {"cache_salt": "b"}, {}, {"cache_salt": "a"}, {"cache_salt": "b"})):
        answer = served.post(path, **asked, **salt, max_tokens=3, temperature=0)
        cached[turn] = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        answers.append(answer["choices"][0])
        total = answer["usage"]["prompt_tokens"]
    assert [cached[turn] for turn in range(3)] == [0, 0, 0]
    assert {cached[turn] for turn in range(3, 6)} <= {total - 1, total}
    words = [each["message"]["content"] if "message" in each else each["text"] for each in answers]
    assert len(set(words)) == 1


def test_several_prompts_and_answers_are_returned_in_order(served: Served) -> None:
    prompts = [[5, 6], [7], [8, 9, 10]]
    body = {"max_tokens": 4, "seed": 7, "temperature": 1.0}
    together = served.post(PATH, prompt=prompts, n=2, return_token_ids=True, **body)["choices"]
    assert [choice["index"] for choice in together] == list(range(6))
    for place, prompt in enumerate(prompts):
        alone = served.post(PATH, prompt=prompt, n=2, **body)["choices"]
        assert [choice["text"] for choice in together[2 * place : 2 * place + 2]] == [choice["text"] for choice in alone]
        assert together[2 * place]["prompt_token_ids"] == prompt
    assert served.post(PATH, prompt=["a", "b"], max_tokens=1)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_p": 0.8, "top_k": 20},
        {"top_k": -1, "min_p": 0.1},
        {"temperature": 1.2, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2},
        {"logit_bias": {"42": 100}},
        {"typical_p": 0.5, "ignore_eos": True},
    ],
)
def test_options_give_the_draws_of_the_library(served: Served, options: dict[str, Any]) -> None:
    answer = served.post(PATH, prompt=IDS, max_tokens=8, seed=3, return_token_ids=True, **options)
    ours = {**options, **({"top_k": 0} if options.get("top_k") == -1 else {})}
    if "logit_bias" in ours:
        ours["logit_bias"] = {42: 100.0}
    drawn = served.model.generate_sync(IDS, GenerationOptions.from_mapping({"max_tokens": 8, "seed": 3, **ours}))
    assert answer["choices"][0]["token_ids"] == [record.token_id for record in drawn]


def test_an_answer_ends_before_a_stop_string_and_at_a_stop_id(served: Served) -> None:
    whole = served.post(PATH, prompt=IDS, max_tokens=8, temperature=0, return_token_ids=True)["choices"][0]
    stop = whole["text"][3:5]
    cut = served.post(PATH, prompt=IDS, max_tokens=8, temperature=0, stop=stop)["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"][: whole["text"].index(stop)], "stop")
    ended = served.post(PATH, prompt=IDS, max_tokens=8, temperature=0, stop_token_ids=[whole["token_ids"][2]])["choices"][0]
    assert ended["finish_reason"] == "stop"
    assert whole["text"].startswith(ended["text"])


def test_stop_ids_end_an_answer_that_ignores_eos(served: Served) -> None:
    whole = served.post(PATH, prompt=IDS, max_tokens=8, temperature=0, return_token_ids=True)["choices"][0]
    beyond = {"prompt": IDS, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    ended = served.post(PATH, **beyond, stop_token_ids=[whole["token_ids"][2]])["choices"][0]
    assert ended["finish_reason"] == "stop"
    eos = str(served.model.eos_token_ids[0])
    assert served.post(PATH, **beyond, logit_bias={eos: 100}, stop_token_ids=[5])["choices"][0]["finish_reason"] == "length"


def test_stop_ids_are_added_to_the_stop_texts_of_the_chat_format(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = served.post(PATH, prompt=IDS, max_tokens=8, temperature=0, return_token_ids=True)["choices"][0]
    said = whole["text"][3:5]
    other = next(token for token in range(3, 100) if token not in whole["token_ids"])
    monkeypatch.setitem(CHAT_FORMATS, "plain", replace(CHAT_FORMATS["plain"], stops=(said,)))
    with serving(tiny(chat_format="plain")) as formatted:
        cut = formatted.post(PATH, prompt=IDS, max_tokens=8, temperature=0, stop_token_ids=[other])["choices"][0]
    assert (cut["text"], cut["finish_reason"]) == (whole["text"][: whole["text"].index(said)], "stop")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "answers"),
    [
        ({"structured_outputs": {"choice": ["a+b", "c.d"]}}, {"a+b", "c.d"}),
        ({"structured_outputs": {"regex": "[xy]"}}, {"x", "y"}),
        ({"structured_outputs": {"grammar": 'start: "u" | "v"'}}, {"u", "v"}),
        ({"structured_outputs": {"json": {"enum": [1, 2]}}}, {"1", "2"}),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [True]}}}}, {"true"}),
        ({"response_format": {"type": "json_object"}, "stop": "{"}, {""}),  # its first character
    ],
)
def test_an_answer_has_the_requested_form(served: Served, form: dict[str, Any], answers: set[str]) -> None:
    (choice,) = served.post(PATH, prompt=IDS, max_tokens=20, **form)["choices"]
    assert choice["text"].strip() in answers
    assert choice["finish_reason"] == "stop"


@pytest.mark.slow
@pytest.mark.parametrize("extra", [{}, {"n": 2}, {"echo": True}, {"logprobs": 2}, {"logprobs": -1}, {"prompt": [[5], [6, 7]]}])
def test_a_stream_adds_up_to_the_whole_answer(served: Served, extra: dict[str, Any]) -> None:
    body = {"prompt": IDS, "max_tokens": 9, "seed": 1, "return_token_ids": True, "return_tokens_as_token_ids": True, **extra}
    whole = served.post(PATH, **body)
    chunks = served.stream(PATH, stream_options={"include_usage": True}, **body)
    assert chunks[-1]["choices"] == []
    streamed, plain = chunks[-1]["usage"], whole["usage"]
    assert {k: v for k, v in streamed.items() if k.endswith("tokens")} == {
        k: v for k, v in plain.items() if k.endswith("tokens")
    }
    for choice in whole["choices"]:
        pieces = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(piece["text"] for piece in pieces) == choice["text"]
        assert [token for piece in pieces for token in piece.get("token_ids", [])] == choice["token_ids"]
        assert [piece["finish_reason"] for piece in pieces if piece["finish_reason"]] == [choice["finish_reason"]]
        if choice["logprobs"] is not None:
            for name, column in choice["logprobs"].items():
                joined = [each for piece in pieces for each in piece["logprobs"][name]]
                assert joined == pytest.approx(column, abs=EXACT) if name == "token_logprobs" else len(joined) == len(column)


def test_usage_of_a_stream_is_sent_only_on_request(served: Served) -> None:
    assert all("usage" not in chunk for chunk in served.stream(PATH, prompt=IDS, max_tokens=2))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_documentation_s_commands_run(served: Served) -> None:
    (block,) = blocks(PAGES["docs/server.md"], "bash")
    commands = block.replace("\\\n", " ").splitlines()
    assert len(commands) >= 8
    for command in commands:
        line = command.replace("http://localhost:8080", served.url).replace("curl ", "curl --fail-with-body --noproxy '*' ")
        line = line.replace("504, 3575, 282", "504, 575, 282")  # ids of a larger vocabulary
        done = subprocess.run(["bash", "-euc", line], capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        assert done.stdout


def test_log_probabilities_on_mlx_equal_those_of_the_library() -> None:
    async def start() -> LanguageModel:
        return load(tiny_path("llama"), "mlx")

    with serving(start) as served:
        found = served.post(PATH, prompt=IDS, max_tokens=0, echo=True, logprobs=0)["choices"][0]["logprobs"]["token_logprobs"]
        records = served.model.score_sync(IDS, 0)
        assert found == pytest.approx([record.logprob for record in records], abs=EXACT)
