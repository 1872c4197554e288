"""`elsewise ask` with speculation: switched on by name, a draft model loaded by name, and the share of right guesses."""

from __future__ import annotations

import json
import re

import pytest

from tests.app.cli.conftest import Done, Elsewise
from tests.tiny_models import tiny_path

LOOKUP = ("--option", 'speculative={"method": "prompt_lookup"}')
SAME = ("--option", 'logit_bias={"97": 100}')  # a repeated letter, which prompt lookup guesses right
ASK = ("ask", "hello", "--backend", "fake", "--max-tokens", "24", "--seed", "1", *SAME)
DRAFTED = re.compile(r", drafted (\d+), accepted (\d+) \((\d+) %\), seed 1$", re.MULTILINE)


def guesses(done: Done) -> tuple[int, int]:
    """The counts of guesses in the last line of JSON."""
    end = json.loads(done.out.splitlines()[-1])
    return end["drafted"], end["accepted"]


def test_an_answer_says_how_many_guesses_were_right(elsewise: Elsewise) -> None:
    plain, guessed, told = elsewise(*ASK), elsewise(*ASK, *LOOKUP), elsewise(*ASK, *LOOKUP, "--json")
    # then the answer is the same, and both forms of the summary have the same counts
    assert guessed.out == plain.out
    drafted, accepted = guesses(told)
    assert 0 < accepted <= drafted
    found = DRAFTED.search(guessed.err)
    assert found is not None
    assert [int(part) for part in found.groups()] == [drafted, accepted, 100 * accepted // drafted]
    # and without speculation no guesses are reported
    assert "drafted" not in plain.err
    assert "drafted" not in json.loads(elsewise(*ASK, "--json").out.splitlines()[-1])


def test_speculation_without_any_guess_is_reported(elsewise: Elsewise) -> None:
    never = ("--option", 'speculative={"method": "prompt_lookup", "prompt_lookup_min": 16, "prompt_lookup_max": 16}')
    done = elsewise("ask", "hello", "--backend", "fake", "--max-tokens", "4", "--seed", "1", *never)
    assert ", drafted nothing, seed 1\n" in done.err


def test_an_answer_in_a_session_reports_its_guesses_too(elsewise: Elsewise) -> None:
    in_session = elsewise(*ASK, *LOOKUP, "--session", "S")
    assert DRAFTED.search(in_session.err) is not None
    assert guesses(elsewise(*ASK, *LOOKUP, "--session", "T", "--json")) == guesses(elsewise(*ASK, *LOOKUP, "--json"))
    assert "drafted" not in elsewise(*ASK, "--session", "U").err


@pytest.mark.slow
@pytest.mark.parametrize("where", [(), ("--session", "S")], ids=["alone", "session"])
def test_a_draft_model_is_loaded_by_name(elsewise: Elsewise, where: tuple[str, ...]) -> None:
    # given the model itself as its draft: every guess is right
    tiny = str(tiny_path("llama"))
    ask = ("ask", "Hi", "--model", tiny, "--backend", "hf", "--max-tokens", "24", "--temperature", "0", *where)
    done = elsewise(*ask, "--load", f"draft_model={tiny}", "--option", 'speculative={"method": "draft"}', "--json")
    assert done.code == 0, done.err
    drafted, accepted = guesses(done)
    assert accepted == drafted > 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--load", "draft_model"], "--load draft_model: write NAME=VALUE"),
        (["--load", "draft_modle=x"], "draft_model"),
        (["--load", "kv_dtype=q8", "--load", "kv_dtype=q4"], "is given twice"),
        (["--load", "chat_format=none", "--session", "S"], "a session is a chat"),
        (["--load", 'blocks={"factory": "a.b:c", "path": "x"}', "--session", "S"], "leave out --load blocks"),
        (["--option", 'speculative={"tokens": 2}'], "unknown option 'tokens' of speculative"),
    ],
)
def test_invalid_options_are_refused_before_a_model_is_loaded(elsewise: Elsewise, given: list[str], words: str) -> None:
    done = elsewise("ask", "hi", "--model", "nowhere", *given)
    assert done.code != 0
    assert done.out == ""
    assert words in done.err


def test_the_flag_of_an_option_overrides_its_generic_form(elsewise: Elsewise) -> None:
    def stops(*given: str) -> list[str]:
        end = json.loads(elsewise(*ASK, *given, "--json").out.splitlines()[-1])
        return list(end["options"]["stop"]["value"])

    chatml, gemma = stops("--load", "chat_format=chatml"), stops("--format", "gemma")
    assert chatml != gemma
    assert stops("--load", "chat_format=chatml", "--format", "gemma") == gemma
