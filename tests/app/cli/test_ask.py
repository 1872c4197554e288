"""`elsewise ask`: text to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from app.cli.options import PRESET
from app.cli.printing import Printer
from runtime import GenerationOptions, LanguageModel, Origin, SamplingOptions, TokenRun, load
from tests.app.cli.conftest import Elsewise
from tests.runtime.grammar.samples import TWICE

ASK = ("--backend", "fake", "--max-tokens", "8", "--seed", "1")


def lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_the_answer_goes_to_stdout_and_the_summary_to_stderr(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hello", *ASK)
    tokens = lines(elsewise("ask", "hello", *ASK, "--json").out)
    assert done.code == 0
    assert done.out == "".join(token["text"] for token in tokens[:-1]) + "\n"
    assert done.err.startswith("8 tokens, length")
    assert done.err.endswith("seed 1\n")


def test_json_output_is_one_object_per_line_and_a_final_one(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hello", *ASK, "--json", "--alternatives", "3")
    *tokens, end = lines(done.out)
    assert [token["type"] for token in tokens] == ["token"] * 8
    assert (end["type"], end["model"], end["backend"]) == ("end", "fake", "fake")
    assert (end["tokens"], end["finish_reason"], end["seed"], end["reused"]) == (8, "length", 1, 0)
    assert end["computed"] == len("<user\nhello>\n<assistant\n")
    assert [token["finish_reason"] for token in tokens] == [None] * 7 + ["length"]
    for token in tokens:
        assert bytes.fromhex(token["bytes"]) == bytes([token["id"]])
        assert len(token["top"]) == 3
        assert [t["logprob"] for t in token["top"]] == sorted((t["logprob"] for t in token["top"]), reverse=True)
        ranked = {t["id"]: (rank, t["logprob"]) for rank, t in enumerate(token["top"], 1)}
        assert ranked.get(token["id"], (token["rank"], token["logprob"])) == (token["rank"], token["logprob"])
    assert "top" not in lines(elsewise("ask", "hello", *ASK, "--json").out)[0]
    assert done.err == ""


def test_the_final_object_names_the_source_of_each_option(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch) -> None:
    done = elsewise("ask", "hello", *ASK, "--json", "--top-p", "0.7", "--stop", "zq", "--regex", "(yes|no)")
    options = lines(done.out)[-1]["options"]
    assert options["sampling.top_p"] == {"value": 0.7, "source": "call"}
    assert options["max_tokens"] == {"value": 8, "source": "call"}
    assert options["stop"] == {"value": ["zq"], "source": "call"}
    assert options["grammar"] == {"value": {"kind": "regex", "source": "(yes|no)"}, "source": "call"}
    assert options["sampling.temperature"] == {"value": 0.8, "source": "preset"}
    assert options["sampling.top_k"] == {"value": 0, "source": "default"}
    # and options that are not set elsewhere have the model's own value
    own = GenerationOptions(sampling=SamplingOptions(top_k=7, temperature=0.1))
    monkeypatch.setattr(LanguageModel, "own_options", own)
    options = lines(elsewise("ask", "hello", *ASK, "--json").out)[-1]["options"]
    assert options["sampling.top_k"] == {"value": 7, "source": "model"}
    assert options["sampling.temperature"] == {"value": 0.8, "source": "preset"}
    assert options["eos_token_ids"]["source"] == "model"
    # of every setting the runtime knows
    with load("", "fake") as model:
        names = set(model.resolve_options({}).sources) - {"seed", "stages", "resolve"}
    assert set(options) == names


@pytest.mark.slow
@pytest.mark.parametrize(
    "named",
    [
        {"typical_p": 0.2},
        {"xtc_probability": 1, "xtc_threshold": 0.001},
        {"dry_multiplier": 4.5, "dry_allowed_length": 1, "dry_breakers": []},
        {"presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"logit_bias": {"101": 9}},
        {"banned_tokens": list(range(97, 123))},
        {"order": ["min_p", "temperature"], "min_p": 0.01, "top_p": 1},
    ],
    ids=lambda named: "-".join(named),
)
def test_any_option_can_be_given_by_its_name(elsewise: Elsewise, named: dict[str, Any]) -> None:
    given = [part for name, value in named.items() for part in ("--option", f"{name}={json.dumps(value)}")]
    done = elsewise("ask", "hello", "--backend", "fake", "--max-tokens", "24", "--seed", "1", "--json", *given)
    *tokens, end = lines(done.out)
    # then the answer is that of the library with these options, and the final object names their sources
    with load("", "fake") as model:
        options = model.resolve_options({"max_tokens": 24, "seed": 1, **named}, preset=PRESET).options
        ids = model.render_chat([{"role": "user", "content": "hello"}])
        assert [token["id"] for token in tokens] == [r.token_id for r in model.generate_sync(ids, options)]
    assert {end["options"][f"sampling.{name}"]["source"] for name in named} == {"call"}
    plain = lines(elsewise("ask", "hello", "--backend", "fake", "--max-tokens", "24", "--seed", "1", "--json").out)
    assert [token["id"] for token in plain[:-1]] != [token["id"] for token in tokens]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("named", "ids"),
    [
        ({"banned_tokens": ["P", 124]}, {"banned_tokens": [80, 124]}),
        ({"banned_tokens": "P"}, {"banned_tokens": [80]}),
        ({"logit_bias": {"P": -100, "97": 3.5}}, {"logit_bias": {"80": -100, "97": 3.5}}),
    ],
)
def test_tokens_can_be_named_by_their_text(elsewise: Elsewise, named: dict[str, Any], ids: dict[str, Any]) -> None:
    def said(given: dict[str, Any]) -> tuple[list[int], Any]:
        options = [part for name, value in given.items() for part in ("--option", f"{name}={json.dumps(value)}")]
        done = elsewise("ask", "hello", "--backend", "fake", "--max-tokens", "24", "--seed", "1", "--json", *options)
        *tokens, end = lines(done.out)
        return [token["id"] for token in tokens], end["options"]

    assert said(named) == said(ids)
    assert said(named)[1][f"sampling.{next(iter(ids))}"]["source"] == "call"
    assert said(named)[0] != said({})[0]


def test_a_text_that_is_not_one_token_is_refused(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hello", "--backend", "fake", "--option", 'banned_tokens=["even"]')
    assert done.code != 0
    assert '"even" is more than one token: it begins with "e"' in done.err


def test_alternatives_are_printed_on_one_line_per_token(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hello", *ASK, "--alternatives", "2")
    assert len(done.out.splitlines()) == 8
    first = lines(elsewise("ask", "hello", *ASK, "--alternatives", "2", "--json").out)[0]
    assert f"rank {first['rank']}" in done.out.splitlines()[0]
    assert done.out.splitlines()[0].count(".") == 3  # its own probability and two others


def test_the_same_seed_gives_the_same_answer_and_another_one_another(elsewise: Elsewise) -> None:
    again = [elsewise("ask", "hello", *ASK).out for _ in range(2)]
    assert again[0] == again[1]
    assert elsewise("ask", "hello", *ASK[:-1], "3").out != again[0]
    loose = [elsewise("ask", "hello", *ASK[:-2]) for _ in range(2)]
    seed = loose[0].err.split()[-1]
    assert seed != loose[1].err.split()[-1]
    assert elsewise("ask", "hello", *ASK[:-1], seed).out == loose[0].out


def test_temperature_zero_and_top_k_one_choose_the_likeliest_token(elsewise: Elsewise) -> None:
    greedy = elsewise("ask", "hello", *ASK, "--temperature", "0", "--json")
    assert {token["rank"] for token in lines(greedy.out)[:-1]} == {1}
    one = elsewise("ask", "hello", *ASK, "--top-k", "1", "--json")
    assert [token["id"] for token in lines(one.out)[:-1]] == [token["id"] for token in lines(greedy.out)[:-1]]
    # the old name does the same, with a note, and so has the changed meaning of --top-k, each for a release
    before = elsewise("ask", "hello", *ASK, "--sample-top-k", "1", "--json")
    assert lines(before.out)[:-1] == lines(one.out)[:-1]
    assert "note: --sample-top-k is called --top-k now" in before.err
    assert "note: --top-k 1 samples among" in one.err
    assert "--alternatives 1" in one.err
    both = elsewise("ask", "hello", *ASK, "--top-k", "1", "--alternatives", "2", "--json")
    assert "note" not in both.err
    assert [token["id"] for token in lines(both.out)[:-1]] == [token["id"] for token in lines(one.out)[:-1]]
    assert {len(token["top"]) for token in lines(both.out)[:-1]} == {2}
    assert elsewise("ask", "hello", *ASK, "--top-k", "1", "--sample-top-k", "1").code == 2


def test_raw_continues_the_text_itself_and_the_system_prompt_comes_first(elsewise: Elsewise) -> None:
    greedy = (*ASK, "--temperature", "0", "--json")
    with load("x", backend="fake") as model:
        expected = {
            "raw": int(model.next_token_logprobs_sync(model.tokenize("hello")).argmax()),
            "system": int(
                model.next_token_logprobs_sync(
                    model.render_chat([{"role": "system", "content": "be"}, {"role": "user", "content": "hello"}])
                ).argmax()
            ),
        }
    assert lines(elsewise("ask", "hello", "--raw", *greedy).out)[0]["id"] == expected["raw"]
    assert lines(elsewise("ask", "hello", "--system", "be", *greedy).out)[0]["id"] == expected["system"]


@pytest.mark.slow
def test_a_chat_format_replaces_the_models_template(elsewise: Elsewise, tmp_path: Path) -> None:
    greedy = (*ASK, "--temperature", "0", "--json")
    (tmp_path / "mine.jinja").write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    with load("x", backend="fake") as model:
        expected = int(model.next_token_logprobs_sync(model.tokenize("hello")).argmax())
    mine = elsewise("ask", "hello", *greedy, "--format", str(tmp_path / "mine.jinja"))
    assert lines(mine.out)[0]["id"] == expected
    none = elsewise("ask", "hello", *greedy, "--format", "none")
    assert lines(none.out)[:-1] == lines(mine.out)[:-1]
    assert "has no chat template: TEXT is continued (--format plain gives it roles)" in none.err
    llama = elsewise("ask", "hello", *greedy, "--format", "llama3")
    assert lines(llama.out)[:-1] != lines(mine.out)[:-1]
    assert llama.err.startswith("note: --format llama3: the vocabulary has no <|start_header_id|>")
    (tmp_path / "broken.jinja").write_text("{% if %}")
    broken = elsewise("ask", "hello", *greedy, "--format", str(tmp_path / "broken.jinja"))
    assert (broken.code, broken.out, "TemplateSyntaxError" in broken.err) == (1, "", True)


def test_an_answer_ends_before_a_stop_text_and_reports_whether_it_is_complete(elsewise: Elsewise) -> None:
    greedy = (*ASK, "--temperature", "0", "--raw")
    whole = elsewise("ask", "hello", *greedy).out[:-1]
    cut = elsewise("ask", "hello", *greedy, "--stop", "nowhere", "--stop", whole[0])
    assert (cut.out, cut.err.split(",")[1]) == ("\n", " stop")
    assert lines(elsewise("ask", "hello", *greedy, "--json").out)[-1]["incomplete"] is True
    assert lines(elsewise("ask", "hello", *greedy, "--stop", whole[0], "--json").out)[-1]["incomplete"] is False


@pytest.mark.slow
def test_an_answer_has_the_requested_form_or_reports_that_it_has_not(elsewise: Elsewise, tmp_path: Path) -> None:
    schema = '{"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": false}'
    (tmp_path / "schema.json").write_text(schema)
    more = ("--seed", "1", "--backend", "fake", "--max-tokens", "200")
    for given in (schema, str(tmp_path / "schema.json")):
        done = elsewise("ask", "hello", *more, "--schema", given)
        assert (done.code, json.loads(done.out)["a"] in (1, 2)) == (0, True)
    assert elsewise("ask", "hello", *more, "--regex", "(yes|no)").out in ("yes\n", "no\n")
    assert elsewise("ask", "hello", *more, "--lark", 'start: "yes" | "no"').out in ("yes\n", "no\n")
    cut = elsewise("ask", "hello", *more[:5], "3", "--schema", schema)
    assert cut.code == 1
    assert "incomplete: the answer ended (length) after 3 tokens, before it had the form asked for" in cut.err
    assert "--max-tokens" in cut.err
    cut = elsewise("ask", "hello", *more[:5], "3", "--schema", schema, "--json")
    assert (cut.code, lines(cut.out)[-1]["incomplete"]) == (1, True)
    saved = elsewise("ask", "hello", *more, "--regex", "(yes|no)", "--session", "A")
    assert (saved.code, saved.out in ("yes\n", "no\n")) == (0, True)
    assert elsewise("ask", "hello", *more[:5], "1", "--regex", "[xy]{3}", "--session", "A").code == 1


def test_json_that_violates_its_schema_once_parsed_is_reported_as_incomplete(elsewise: Elsewise) -> None:
    # given a schema whose only answer that llguidance allows repeats a key
    more = ("--seed", "1", "--backend", "fake", "--max-tokens", "200", "--schema", json.dumps(TWICE))
    done = elsewise("ask", "hello", *more)
    assert (done.code, done.out) == (1, '{"a":1,"a":1}\n')
    assert "incomplete: the answer ended (grammar) after 13 tokens, but read as JSON it is not what the schema" in done.err
    assert "--seed" in done.err
    told = lines(elsewise("ask", "hello", *more, "--json").out)[-1]
    assert (told["finish_reason"], told["incomplete"]) == ("grammar", True)
    saved = elsewise("ask", "hello", *more, "--session", "A")
    assert (saved.code, saved.out) == (1, '{"a":1,"a":1}\n')
    assert "read as JSON it is not what the schema describes" in saved.err


def test_the_help_has_an_example_of_each_way_to_ask(elsewise: Elsewise) -> None:
    out = elsewise("ask", "--help").out
    assert 'elsewise ask "Once upon a time" --raw' in out
    assert "elsewise ask --batch questions.jsonl --out answers.jsonl" in out
    assert "\b" not in out


def test_the_global_options_choose_the_model_too(elsewise: Elsewise) -> None:
    done = elsewise("--backend", "mock", "--model", "anything", "ask", "hello", "--max-tokens", "2", "--json")
    assert len(lines(done.out)) == 3


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("ask", "hi", "--backend", "nope"), 2, "unknown backend 'nope': known: fake, hf, mlx, mock"),
        (("ask", "hi", "--backend", "fakes"), 2, "did you mean 'fake'?"),
        (("ask", "hi", "--backend", "vllm"), 1, "use hf or mlx"),
        (("ask", "hi", "--model", "nope"), 1, "elsewise models list"),
        (("ask", "hi"), 1, "elsewise models get smollm2"),
        (("ask", "", "--backend", "fake"), 2, "TEXT is empty"),
        (("ask", " \n", "--backend", "fake"), 2, "TEXT is empty"),
        (("ask", "hi", "--backend", "fake", "--max-tokens", "0"), 2, "--max-tokens"),
        (
            ("ask", "hi", "--backend", "fake", "--temperature", "-1"),
            2,
            "--temperature must be a number, 0 or more, not -1.0",
        ),
        (("ask", "hi", "--backend", "fake", "--temperature", "nan"), 2, "temperature"),
        (("ask", "hi", "--backend", "fake", "--temperature", "warm"), 2, "--temperature"),
        (
            ("ask", "hi", "--backend", "fake", "--seed", str(1 << 64)),
            2,
            "--seed must be a whole number below 2**64",
        ),
        (("ask", "hi", "--backend", "fake", "--alternatives", "1001"), 2, "--alternatives"),
        (("ask", "hi", "--session", "A", "--raw"), 2, "leave out --system and --raw"),
        (("ask", "hi", "--raw", "--system", "be"), 2, "leave out --system and --format"),
        (("ask", "hi", "--raw", "--format", "chatml"), 2, "leave out --system and --format"),
        (("ask", "hi", "--session", "A", "--format", "none"), 2, "--format none has no roles"),
        (("ask", "hi", "--format", "gema"), 2, "neither one of auto, none, chatml"),
        (("ask", "hi", "--backend", "fake", "--format", "none", "--system", "be"), 2, "has no chat template; give it one"),
        (("ask", "hi", "--backend", "fake", "--stop", ""), 2, "none of them empty"),
        (("ask", "hi", "--backend", "fake", "--top-p", "0"), 2, "--top-p must be a number above 0 and at most 1"),
        (("ask", "hi", "--backend", "fake", "--top-p", "1.5"), 2, "--top-p must be a number above 0 and at most 1"),
        (("ask", "hi", "--backend", "fake", "--top-p", "nan"), 2, "--top-p must be a number above 0 and at most 1"),
        (("ask", "hi", "--backend", "fake", "--min-p", "2"), 2, "--min-p must be a number from 0 to 1"),
        (("ask", "hi", "--option", "typical_p"), 2, "--option typical_p: write NAME=VALUE, such as typical_p=0.9"),
        (("ask", "hi", "--option", "typical=0.9"), 2, "unknown option 'typical': did you mean 'typical_p'"),
        (("ask", "hi", "--option", "typical_p=0"), 2, "--option typical_p must be a number above 0 and at most 1"),
        (("ask", "hi", "--option", "typical_p=NaN"), 2, "--option typical_p must be a number above 0 and at most 1"),
        (("ask", "hi", "--option", "typical_p=much"), 2, "--option typical_p must be a number above 0 and at most 1"),
        (("ask", "hi", "--option", "min_p=0.1", "--option", "min_p=0.2"), 2, "--option min_p is given twice"),
        (("ask", "hi", "--option", "min_p=0.1", "--min-p", "0.2"), 2, "--option min_p is given twice"),
        (("ask", "hi", "--option", "temp=0.1", "--temperature", "0.2"), 2, "contradict each other"),
        (("ask", "hi", "--option", "grammar=x"), 2, "--option grammar: use --schema, --regex or --lark"),
        (
            ("ask", "hi", "--backend", "fake", "--option", 'logit_bias={"xy": 1}'),
            1,
            '"xy" is more than one token: it begins with "x"',
        ),
        (("ask", "hi", "--option", 'order=["top_p", "top_p"]'), 2, "stands there twice"),
        (("ask", "hi", "--schema", "{}", "--regex", "a"), 2, "contradict each other"),
        (("ask", "hi", "--schema", '{"type": "nothing"}'), 2, "schema"),
        (("ask", "hi", "--schema", "{"), 2, "not JSON"),
        (("ask", "hi", "--schema", "[1]"), 2, "a JSON schema is a dictionary"),
        (("ask", "hi", "--schema", "nowhere.json"), 1, "nowhere.json: No such file"),
        (("ask", "hi", "--regex", "("), 2, "regex"),
        (("ask", "hi", "--lark", 'start: "a"', "--regex", "a"), 2, "a regex and a Lark grammar contradict each other"),
        (("ask", "hi", "--lark", "start: nothing"), 2, 'unknown name: "nothing"'),
        (("ask", "hi", "--lark", "nowhere.lark"), 1, "nowhere.lark: No such file"),
        (("ask", "hi", "--regex", r"[^\s\S]"), 2, "allows nothing"),
        (("ask",), 2, "TEXT is missing"),
        (("asks", "hi"), 2, "No such command 'asks'"),
        (("--nope", "ask", "hi"), 2, "No such option"),
    ],
)
def test_refusals_name_the_way_out(elsewise: Elsewise, arguments: tuple[str, ...], code: int, words: str) -> None:
    done = elsewise(*arguments)
    assert (done.code, done.out) == (code, "")
    assert words in done.err


def test_a_prompt_longer_than_the_context_is_refused(elsewise: Elsewise) -> None:
    done = elsewise("ask", "x" * 40_000, "--backend", "mock")
    assert done.code == 1
    assert "do not fit into the context of 32,768" in done.err


@pytest.mark.parametrize("text", ["tab\tesc\x1b[31m", "<|im_end|>", "é😀"])
def test_special_characters_in_a_prompt_are_plain_text(elsewise: Elsewise, text: str) -> None:
    assert elsewise("ask", text, *ASK).code == 0


def test_an_incomplete_character_is_refused(elsewise: Elsewise) -> None:
    done = elsewise("ask", "half \ud83d", *ASK)
    assert (done.code, done.out) == (2, "")
    assert "it is not UTF-8" in done.err


def test_a_plain_ask_saves_nothing(elsewise: Elsewise, data: object) -> None:
    elsewise("ask", "hello", *ASK)
    assert elsewise("sessions", "list").err.startswith("no sessions yet")


@pytest.mark.parametrize(("terminal", "wanted"), [(True, "a[2Jb\n"), (False, "a\x1b[2Jb\n")])
def test_a_terminal_gets_no_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool, wanted: str
) -> None:
    texts = ["a", "\x1b", "[2J", "b\n"]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run = TokenRun.unscored(range(4), [text.encode() for text in texts], texts, Origin.SAMPLED)
    Printer(0, as_json=False).run(run, lambda _token: b"")
    assert capsys.readouterr().out == wanted
