"""`elsewise ask --batch`: every line checked first, many answered at once, each result written when it is done."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from runtime import Finish, GenerationOptions, Grammar, LanguageModel, Origin, SamplingOptions, TokenRun, load
from tests.app.cli.conftest import Elsewise, stdin_of
from tests.runtime.grammar.samples import TWICE

FAKE = ("--backend", "fake", "--max-tokens", "6")


def write(file: Path, *lines: object) -> None:
    file.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")


def results(out: str) -> list[dict[str, Any]]:
    """In the order of the questions."""
    return sorted(map(json.loads, out.splitlines()), key=lambda answer: int(answer["line"]))


def test_each_line_is_written_when_it_is_done_and_equals_its_answer_alone(elsewise: Elsewise, file: Path) -> None:
    # given a first line that takes the longest
    write(
        file,
        {"prompt": "hello", "id": "long", "max_tokens": 30, "seed": 1},
        "",
        {"prompt": "you", "seed": 2},
        {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "me"}], "seed": 3, "temperature": 0},
    )
    # when
    done = elsewise("ask", "--batch", str(file), *FAKE)
    # then
    assert done.code == 0
    found = results(done.out)
    assert json.loads(done.out.splitlines()[-1])["id"] == "long"
    assert [r["line"] for r in found] == [1, 3, 4]
    assert [(r["id"], r["seed"], r["incomplete"]) for r in found] == [("long", 1, True), (3, 2, True), (4, 3, True)]
    assert found[0]["tokens"] > 6
    assert found[0]["text"] + "\n" == elsewise("ask", "hello", *FAKE[:3], "30", "--seed", "1").out
    assert found[1]["text"] + "\n" == elsewise("ask", "you", *FAKE, "--seed", "2").out
    alone = elsewise("ask", "me", "--system", "be", *FAKE, "--seed", "3", "--temperature", "0").out
    assert found[2]["text"] + "\n" == alone
    assert done.err == f"3 answers, {sum(r['tokens'] for r in found)} tokens\n"


def test_options_of_the_command_apply_to_lines_that_do_not_set_them(elsewise: Elsewise, file: Path) -> None:
    write(file, {"prompt": "hello"}, {"prompt": "hello", "system": "be", "top_k": 1}, {"prompt": "hello", "seed": 9})
    done = elsewise("ask", "--batch", str(file), *FAKE, "--seed", "7", "--system", "see", "--temperature", "1.5")
    first, second, third = results(done.out)
    assert [r["seed"] for r in (first, second, third)] == [7, 8, 9]
    same = ("ask", "hello", *FAKE, "--temperature", "1.5")
    assert first["text"] + "\n" == elsewise(*same, "--system", "see", "--seed", "7").out
    assert second["text"] + "\n" == elsewise(*same, "--system", "be", "--seed", "8", "--top-k", "1").out
    assert third["text"] + "\n" == elsewise(*same, "--system", "see", "--seed", "9").out


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> list[GenerationOptions]:
    """The options of each answer; the model has a top-k of its own."""
    found: list[GenerationOptions] = []
    real = LanguageModel.generate_runs

    async def generate_runs(self: Any, ids: list[int], options: Any) -> Any:
        found.append(options)
        async for run in real(self, ids, options):
            yield run

    monkeypatch.setattr(LanguageModel, "generate_runs", generate_runs)
    monkeypatch.setattr(LanguageModel, "own_options", GenerationOptions(sampling=SamplingOptions(top_k=33, temperature=0.1)))
    return found


def test_lines_may_use_the_option_names_of_other_libraries(
    elsewise: Elsewise, file: Path, options: list[GenerationOptions]
) -> None:
    lines: list[dict[str, Any]] = [
        {"max_new_tokens": 3, "logit_bias": {"12": -5}, "do_sample": False},
        {"max_completion_tokens": 4, "sampling": {"temperature": 0.4}, "eos_token_id": 7, "seed": 5},
        {"order": ["penalties", "temperature"], "repeat_penalty": 1.1},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [1]}}}},
        {},
    ]
    write(file, *({"prompt": "a", **line} for line in lines))
    done = elsewise("ask", "--batch", str(file), "--backend", "fake", "--top-p", "0.5", "--seed", "1")
    assert (done.code, done.err.partition(" answers")[0]) == (0, "5")
    assert sorted(each.seed or 0 for each in options) == [1, 3, 4, 5, 5]
    first, third, fourth = (next(each for each in options if each.seed == seed) for seed in (1, 3, 4))
    second, last = sorted((each for each in options if each.seed == 5), key=lambda each: each.max_tokens or 0)
    assert (first.max_tokens, first.sampling.logit_bias, first.sampling.temperature) == (3, {12: -5}, 0.0)
    assert (second.max_tokens, second.sampling.temperature, second.eos_token_ids) == (4, 0.4, (7,))
    assert third.sampling.order == ("penalties", "temperature")
    assert (third.sampling.top_p, third.sampling.min_p, third.sampling.repetition_penalty) == (1.0, 0.0, 1.1)
    assert fourth.grammar == Grammar.json_schema({"enum": [1]})
    # the command's own, the preset's, and one that only the model sets
    assert (last.sampling.top_p, last.sampling.temperature, last.max_tokens, last.sampling.top_k) == (0.5, 0.8, 128, 33)


def test_lines_name_tokens_by_their_text(elsewise: Elsewise, file: Path, options: list[GenerationOptions]) -> None:
    lines: list[dict[str, Any]] = [
        {"banned_tokens": ["P", 124]},
        {"banned_tokens": "P"},
        {"logit_bias": {"P": -100, "97": 3.5}},
        {},
    ]
    write(file, *({"prompt": "a", "seed": seed, **line} for seed, line in enumerate(lines)))
    done = elsewise("ask", "--batch", str(file), "--backend", "fake", "--option", 'banned_tokens=["e"]')
    assert done.code == 0
    # then each line has its own ids, before those of the command
    found = {each.seed: each.sampling for each in options}
    assert [found[seed].banned_tokens for seed in range(4)] == [(80, 124), (80,), (101,), (101,)]
    assert found[2].logit_bias == {80: -100, 97: 3.5}


def test_lines_choose_among_loaded_adapters(elsewise: Elsewise, file: Path) -> None:
    write(file, {"prompt": "a", "adapters": [["pirate", 0.5]]}, {"prompt": "a", "adapters": [], "seed": 1})
    first, second = results(elsewise("ask", "--batch", str(file), *FAKE).out)
    assert "pirate" in first["error"]
    assert second["tokens"] == 6


def test_raw_lines_are_continued_and_the_stop_text_is_left_out(elsewise: Elsewise, file: Path) -> None:
    with load("x", backend="fake") as model:
        expected = int(model.next_token_logprobs_sync(model.tokenize("hello")).argmax())
        letter = model.decode_token(expected).decode()
    write(file, {"prompt": "hello", "temperature": 0}, {"prompt": "hello", "temperature": 0, "stop": letter})
    whole, cut = results(elsewise("ask", "--batch", str(file), "--raw", *FAKE).out)
    assert whole["text"].startswith(letter)
    assert (cut["text"], cut["finish_reason"], cut["incomplete"]) == ("", "stop", False)


def test_json_that_violates_its_schema_once_parsed_is_incomplete(elsewise: Elsewise, file: Path) -> None:
    # given one of these, one that is cut and one that is whole
    schema = {"type": "json_schema", "json_schema": {"schema": TWICE}}
    write(
        file,
        {"prompt": "a", "response_format": schema, "max_tokens": 40},
        {"prompt": "a", "response_format": schema, "max_tokens": 4},
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"enum": [True]}}}},
    )
    done = elsewise("ask", "--batch", str(file), *FAKE)
    found = [(r["text"], r["finish_reason"], r["incomplete"]) for r in results(done.out)]
    assert found == [('{"a":1,"a":1}', "grammar", True), ('{"a"', "length", True), ("true", "grammar", False)]
    assert done.code == 1
    assert '1 of them incomplete ("incomplete": true): allow more with --max-tokens' in done.err
    assert '1 of them incomplete ("incomplete": true), but read as JSON it is not what the schema describes' in done.err


def test_lines_come_from_standard_input_too(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin_of(b'{"prompt": "a"}\n{"prompt": "b"}'))
    done = elsewise("ask", "--batch", "-", *FAKE)
    assert [r["id"] for r in results(done.out)] == [1, 2]


def test_tools_are_offered_and_calls_are_parsed(
    elsewise: Elsewise, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a template that takes tools, and models that write calls
    template = tmp_path / "tools.jinja"
    template.write_text(
        "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    tool = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "required": ["zone"]}}}
    answers = ['<tool_call>{"name": "clock", "arguments": {"zone": "CET"}}</tool_call>', "[TOOL_CALLS]clock{}", "Noon."]
    write(file, *({"prompt": str(i), "tools": [tool], "id": i} for i in range(3)), {"prompt": "9"})
    prompts: list[str] = []

    async def generate_runs(self: Any, ids: list[int], options: Any) -> Any:
        prompts.append(self.detokenize(ids))
        answer = answers[int(prompts[-1][-1]) % 3].encode()
        run = TokenRun.unscored(list(answer), [bytes([b]) for b in answer], [chr(b) for b in answer], Origin.SAMPLED)
        run.finish[-1] = Finish.STOP
        yield run

    monkeypatch.setattr("runtime.LanguageModel.generate_runs", generate_runs)
    # when
    done = elsewise("ask", "--batch", str(file), "--format", str(template), *FAKE)
    # then
    first, second, third, plain = results(done.out)
    assert first["tool_calls"][0] | {"id": ""} == {"id": "", "name": "clock", "arguments": {"zone": "CET"}}
    assert "clock needs zone" in second["tool_call_error"]
    assert third["tool_calls"] == []
    assert "tool_calls" not in plain
    assert ['"clock"' in prompt for prompt in prompts] == [True, True, True, False]


def test_a_failing_answer_does_not_affect_the_others(elsewise: Elsewise, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given
    from runtime import LanguageModel, MemoryBudgetError

    real = LanguageModel.generate_runs

    async def generate_runs(self: Any, ids: list[int], options: Any) -> Any:
        if options.seed == 5:
            raise MemoryBudgetError("no room for 5")
        async for run in real(self, ids, options):
            yield run

    monkeypatch.setattr(LanguageModel, "generate_runs", generate_runs)
    write(file, {"prompt": "a", "seed": 5}, {"prompt": "b", "seed": 1})
    # when
    done = elsewise("ask", "--batch", str(file), *FAKE)
    # then
    first, second = results(done.out)
    assert done.code == 1
    assert (first["error"], first["incomplete"]) == ("no room for 5", True)
    assert second["tokens"] == 6
    assert '1 of them failed ("error" says why)' in done.err


@pytest.mark.slow
def test_lines_have_forms_of_their_own_and_truncated_answers_are_marked(elsewise: Elsewise, file: Path) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    write(
        file,
        {"prompt": "a", "schema": schema, "max_tokens": 200},
        {"prompt": "b", "regex": "[xy]{2}"},
        {"prompt": "c", "schema": json.dumps(schema), "max_tokens": 3},
        {"prompt": "d"},
        {"prompt": "e", "lark": 'start: "v"~5'},
    )
    done = elsewise("ask", "--batch", str(file), *FAKE, "--regex", "z{4}")
    assert done.code == 1
    first, second, third, fourth, fifth = results(done.out)
    assert json.loads(first["text"])["a"] in (1, 2)
    assert set(second["text"]) <= {"x", "y"}
    assert len(second["text"]) == 2
    assert fourth["text"] == "zzzz"
    assert fifth["text"] == "vvvvv"
    assert [r["incomplete"] for r in (first, second, third, fourth, fifth)] == [False, False, True, False, False]
    assert third["finish_reason"] == "length"
    assert "1 of them incomplete" in done.err


SLOW_FIRST = [{"prompt": "a", "id": "slow", "max_tokens": 60, "ignore_eos": True}, *({"prompt": str(i)} for i in range(9))]


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def test_a_partial_file_of_results_is_resumed(elsewise: Elsewise, file: Path, out: Path) -> None:
    # given all answers, and a file that was cut in the middle of its last one, with one that failed
    write(file, *SLOW_FIRST)
    command = ("ask", "--batch", str(file), *FAKE, "--seed", "5", "--out", str(out))
    whole = elsewise(*command)
    assert (whole.code, whole.out) == (0, "")
    all_of_them = results(out.read_text())
    lines = out.read_text().splitlines()
    failed = json.dumps(json.loads(lines[0]) | {"error": "the engine ended"})
    out.write_text("\n".join([failed, *lines[1:5], lines[5][:20]]))
    # then a second run refuses to write there, and with --resume answers the rest
    again = elsewise(*command)
    assert (again.code, again.out) == (1, "")
    assert "is there already; go on with it (--resume), or choose another name" in again.err
    done = elsewise(*command, "--resume")
    assert (done.code, done.out) == (0, "")
    assert done.err.splitlines()[0] == f"4 of 10 lines are answered in {out} already"
    assert done.err.splitlines()[-1].startswith("6 answers, ")
    assert results(out.read_text()) == all_of_them
    # and a third has nothing to do
    before = out.read_bytes()
    last = elsewise(*command, "--resume")
    assert (last.code, last.out, out.read_bytes()) == (0, "", before)
    assert f"10 of 10 lines are answered in {out} already" in last.err


def test_a_file_with_answers_to_other_questions_is_not_resumed(elsewise: Elsewise, file: Path, out: Path) -> None:
    write(file, {"prompt": "a", "id": "first"}, {"prompt": "b"})
    for there, words in (
        ('{"id": "other", "line": 1, "text": ""}\n', "line 1: it answers no line of"),
        ('{"id": 9, "line": 9}\n', "line 1: it answers no line of"),
        ("[]\n", "line 1: it answers no line of"),
        ('{"id": 1, "line": [1]}\n', "line 1: it answers no line of"),
        ("not JSON\n{}\n", "line 1: not JSON"),
    ):
        out.write_text(there)
        done = elsewise("ask", "--batch", str(file), *FAKE, "--out", str(out), "--resume")
        assert (done.code, done.out) == (1, "")
        assert words in done.err
        assert out.read_text() == there
    assert [path.name for path in out.parent.iterdir() if ".part" in path.name] == []
    for more in (("ask", "hi", "--out", str(out)), ("ask", "--batch", str(file), "--resume")):
        assert elsewise(*more, "--backend", "fake").code == 2
    nowhere = elsewise("ask", "--batch", str(file), *FAKE, "--out", str(out.parent / "no" / "a.jsonl"))
    assert (nowhere.code, "No such file" in nowhere.err) == (1, True)


def test_lines_in_the_form_of_openais_batch_interface_are_answered_like_ours(elsewise: Elsewise, file: Path) -> None:
    # given the same request in both forms, the file with a byte order mark
    body = {
        "model": "gpt",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "me"}]}],
        "n": 1,
        "stream": False,
    }
    theirs = {"custom_id": "r-1", "method": "POST", "url": "/v1/chat/completions", "body": body | {"max_tokens": 5, "seed": 3}}
    ours = {"id": "mine", "messages": [{"role": "user", "content": "me"}], "max_tokens": 5, "seed": 3, "stream": True}
    file.write_text("\ufeff" + json.dumps(theirs) + "\n" + json.dumps(ours) + "\n", "utf-8")
    done = elsewise("ask", "--batch", str(file), *FAKE)
    # then both have one answer, and each its own id
    assert done.code in (0, 1)
    first, second = results(done.out)
    assert (first["custom_id"], first["id"], second["id"], "custom_id" in second) == ("r-1", "r-1", "mine", False)
    assert (first["text"], first["tokens"]) == (second["text"], second["tokens"])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"body": 5}, '"body" is an object, not 5'),
        ({"url": "/v1/embeddings"}, '"url" is /v1/chat/completions or /v1/completions'),
        ({"body": {"prompt": "hi", "n": 3}}, '"n" is 3: one answer is given to a line'),
        ({"prompt": "hi"}, "unknown name 'prompt' beside \"body\""),
        ({"body": {"prompt": "hi", "max_tokens": 0}}, '"max_tokens" must be a whole number'),
        ({"body": {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}}, "only parts {'type': 'text'"),
    ],
)
def test_an_invalid_line_of_openais_form_is_named(elsewise: Elsewise, file: Path, change: dict[str, Any], says: str) -> None:
    write(file, {"custom_id": "r-1", "body": {"prompt": "hi"}} | change)
    done = elsewise("ask", "--batch", str(file), *FAKE)
    assert (done.code, done.out, says in done.err) == (2, "", True)


def test_a_repeated_custom_id_is_refused_before_anything_is_computed(elsewise: Elsewise, file: Path) -> None:
    body = {"body": {"prompt": "hi"}}
    write(file, {"custom_id": "r-1"} | body, {"custom_id": "r-2"} | body, {"custom_id": "r-1"} | body)
    done = elsewise("ask", "--batch", str(file), *FAKE)
    assert (done.code, done.out) == (2, "")
    assert "line 3: \"custom_id\" 'r-1' is that of line 1" in done.err
