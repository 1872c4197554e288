"""Tokens that `elsewise ask --session` names by their text."""

from __future__ import annotations

import json
from pathlib import Path

from tests.app.cli.conftest import Elsewise
from tests.app.cli.test_saved import ASK, stats_of_answers


def test_a_session_accepts_tokens_by_their_text(elsewise: Elsewise, data: Path) -> None:
    # given a text that is a token, and an answer that contains it
    ask = ("ask", "hello", "--backend", "fake", "--max-tokens", "24", "--seed", "1", "--json", "--session")
    said = [json.loads(line) for line in elsewise(*ask, "free").out.splitlines()]
    assert any(token.get("text") == "P" for token in said)
    # when it is banned by its text, and by its id
    by_text = elsewise(*ask, "text", "--option", 'banned_tokens=["P"]', "--option", 'logit_bias={"a": -2.5}')
    by_id = elsewise(*ask, "ids", "--option", "banned_tokens=[80]", "--option", 'logit_bias={"97": -2.5}')
    # then both answers are equal, without it, and the stored options have the id and its source
    assert by_text.code == 0
    told = [[json.loads(line) for line in done.out.splitlines()] for done in (by_text, by_id)]
    for *_, end in told:
        assert end.pop("tokens_per_second") > 0  # measured
    assert told[0] == told[1]
    assert not any(json.loads(line).get("text") == "P" for line in by_text.out.splitlines())
    made = [stats["made"] for stats in stats_of_answers(data)]
    assert made[1]["options"]["sampling"]["banned_tokens"] == made[2]["options"]["sampling"]["banned_tokens"] == [80]
    assert "sampling.banned_tokens" in made[1]["sources"]["call"]


def test_a_text_that_is_not_one_token_creates_no_session(elsewise: Elsewise) -> None:
    done = elsewise("ask", "hello", "--session", "one", *ASK, "--option", 'banned_tokens=["even"]')
    assert (done.code, done.out) == (1, "")
    assert '"even" is more than one token: it begins with "e"' in done.err
    assert elsewise("sessions", "list").err.startswith("no session found")
    assert elsewise("ask", "hello", "--session", "one", *ASK).code == 0  # the data folder is not locked
