"""Batch files that are refused with the reason, before anything is computed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.app.cli.conftest import Elsewise
from tests.app.cli.test_batch import FAKE, write

BAD: list[tuple[object, str]] = [
    ("{", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ([1], "a JSON object is needed, not list"),
    ({}, 'give one of "prompt" and "messages"'),
    ({"prompt": "a", "messages": []}, 'give one of "prompt" and "messages"'),
    ({"prompt": " "}, "a text that is not empty"),
    ({"prompt": 5}, "a text that is not empty"),
    ({"promt": "a"}, "unknown name 'promt': did you mean 'prompt'?"),
    ({"prompt": "a", "zzz": 1}, "unknown name 'zzz': known: "),
    ({"prompt": "a", "max_new_token": 1}, "unknown name 'max_new_token': did you mean 'max_new_tokens'?"),
    ({"prompt": "a", "top_logprobs": 3}, "unknown name 'top_logprobs'"),
    ({"prompt": "a", "max_tokens": 3, "max_new_tokens": 4}, "contradict each other"),
    ({"prompt": "a", "order": ["temperature"], "top_k": 3}, "contradicts an order without 'top_k'"),
    ({"prompt": "a", "logit_bias": {"99999": 1}}, "token id 99999 is outside the vocabulary"),
    ({"prompt": "a", "eos_token_id": [99999]}, "token id 99999 is outside the vocabulary"),
    ({"prompt": "a", "id": [1]}, '"id" is a text or a whole number'),
    ({"prompt": "a", "id": True}, '"id" is a text or a whole number'),
    ({"prompt": "a", "temperature": -1}, '"temperature" must be a number, 0 or more'),
    ({"prompt": "a", "temperature": "warm"}, '"temperature" must be a number, 0 or more'),
    ('{"prompt": "a", "temperature": NaN}', '"temperature" must be a number, 0 or more'),
    ({"prompt": "a", "top_p": 0}, '"top_p" must be a number above 0 and at most 1'),
    ({"prompt": "a", "temperature": float("nan")}, '"temperature" must be a number, 0 or more'),
    ({"prompt": "a", "banned_tokens": list(range(259))}, "banned"),
    ({"prompt": "a", "banned_tokens": ["even"]}, '"even" is more than one token: it begins with "e"'),
    ({"prompt": "a", "logit_bias": {"even": 1}}, '"even" is more than one token'),
    ({"prompt": "a", "logit_bias": {"e": float("nan")}}, "logit_bias"),
    ({"prompt": "a", "regex": r"[^\s\S]"}, "allows nothing"),
    ({"prompt": "a", "adapters": [["pirate", float("nan")]]}, "must be a finite number"),
    ({"prompt": "a", "max_tokens": 0}, '"max_tokens" must be a whole number'),
    ({"prompt": "a", "seed": -1}, '"seed" must be a whole number'),
    ({"prompt": "a", "stop": ""}, "none of them empty"),
    ({"prompt": "a", "stop": 5}, '"stop" is a sequence of texts'),
    ({"prompt": "a", "system": 5}, '"system" is a text'),
    ({"messages": "a"}, '"messages" is a list'),
    ({"prompt": "a", "tools": 5}, "tools is a list of definitions"),
    ({"prompt": "a", "top_k": [1]}, '"top_k" must be a whole number'),
    ({"messages": []}, "messages is a list of at least one"),
    ({"messages": [{"role": "elf", "content": "a"}]}, "the role 'elf' is not one of"),
    ({"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}, "takes no tools"),
    ({"prompt": "x" * 140_000}, "do not fit into the context of"),
]


def refuses(elsewise: Elsewise, monkeypatch: pytest.MonkeyPatch, file: Path, line: object, says: str) -> None:
    """Asserts that the second of two lines is named with its error, and that the first one is not answered either."""
    monkeypatch.setattr("runtime.LanguageModel.generate_runs", None)  # must not be reached
    write(file, {"prompt": "fine"}, line)
    done = elsewise("ask", "--batch", str(file), *FAKE)
    assert (done.code, done.out) == (2, "")
    assert "nothing was asked" in done.err
    assert "line 2: " in done.err
    assert says in done.err


@pytest.mark.slow
@pytest.mark.parametrize(("line", "says"), BAD, ids=[says for _, says in BAD])
def test_a_bad_line_is_named_before_anything_is_computed(
    elsewise: Elsewise, file: Path, line: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(elsewise, monkeypatch, file, line, says)


@pytest.mark.parametrize("name", ["system", "tools"])
def test_options_that_need_a_chat_are_refused_for_raw_lines(elsewise: Elsewise, file: Path, name: str) -> None:
    write(file, {"prompt": "a", name: "x"})
    done = elsewise("ask", "--batch", str(file), "--raw", *FAKE)
    assert (done.code, f'line 1: "{name}" needs a chat: leave out --raw' in done.err) == (2, True)


def test_the_first_of_many_bad_lines_are_named(elsewise: Elsewise, file: Path) -> None:
    write(file, *["{"] * 8)
    err = elsewise("ask", "--batch", str(file), *FAKE).err
    assert "line 5: " in err
    assert "line 6: " not in err
    assert "and 3 more" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("hi", "--batch", "FILE"), 2, "leave out TEXT"),
        (("--batch", "FILE", "--session", "A"), 2, "leave out --session"),
        (("--batch", "FILE", "--alternatives", "3"), 2, "leave out --alternatives"),
        (("--batch", "nowhere.jsonl"), 1, "No such file"),
        (("--batch", "FILE", "--raw"), 2, '"messages" have roles'),
        (("--batch", "FILE", "--format", "none"), 2, "continue texts with --raw, or choose a --format"),
    ],
)
def test_options_that_do_not_apply_to_a_batch_are_refused(
    elsewise: Elsewise, file: Path, arguments: tuple[str, ...], code: int, says: str
) -> None:
    write(file, {"messages": [{"role": "user", "content": "a"}]})
    done = elsewise("ask", *(str(file) if a == "FILE" else a for a in arguments), *FAKE)
    assert (done.code, done.out) == (code, "")
    assert says in done.err


def test_an_empty_file_and_a_binary_file_are_refused(elsewise: Elsewise, file: Path) -> None:
    write(file, "", " ")
    assert "no lines; write one such as" in elsewise("ask", "--batch", str(file), *FAKE).err
    file.write_bytes(b'{"prompt": "\xff"}')
    done = elsewise("ask", "--batch", str(file), *FAKE)
    assert (done.code, "not UTF-8 at byte 12" in done.err) == (1, True)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"prompt": "a", "schema": {"type": "nothing"}}, "line 2: "),
        ({"prompt": "a", "schema": "{"}, "not JSON"),
        ({"prompt": "a", "schema": 5}, "a JSON schema is"),
        ({"prompt": "a", "regex": "("}, "line 2: "),
        ({"prompt": "a", "regex": 5}, "line 2: "),
        ({"prompt": "a", "regex": "a", "schema": {}}, "contradict each other"),
        ({"prompt": "a", "regex": "a", "response_format": {"type": "json_object"}}, "contradict each other"),
        (
            {"prompt": "a", "regex": "a", "grammar": {"kind": "regex", "source": "b"}},
            "a grammar beside a schema, a regex or a lark",
        ),
        ({"prompt": "a", "response_format": {"type": "yaml"}}, '"response_format" is {'),
        ({"prompt": "a", "grammar": {"kind": "regex", "source": "("}}, "line 2: "),
        ({"prompt": "a", "regex": "a", "ignore_eos": True}, '"ignore_eos" contradicts a grammar'),
    ],
)
def test_an_invalid_form_is_named_before_anything_is_computed(
    elsewise: Elsewise, file: Path, line: object, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuses(elsewise, monkeypatch, file, line, says)


def test_a_batch_that_is_refused_leaves_no_file(elsewise: Elsewise, file: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    file.write_text('{"prompt": "hi"}\n')
    command = ("ask", "--batch", str(file), "--out", str(out), "--max-tokens", "2")
    assert elsewise(*command, "--model", str(tmp_path / "nowhere"), "--backend", "hf").code == 1
    assert elsewise(*command, "--backend", "fake", "--load", "context_length=4").code == 2
    assert not out.exists()
    assert elsewise(*command, "--backend", "fake").code == 0
    assert len(out.read_text().splitlines()) == 1
