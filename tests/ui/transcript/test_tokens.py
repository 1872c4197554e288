from __future__ import annotations

import numpy as np

from resources.ramp import step_of
from runtime import Origin, TokenRun
from tests.ui.transcript.samples import ended, run_of, template, written
from ui.transcript.tokens import END, GENERATED, RARE, STEP, TEMPLATE, Tokens


def test_tokens_appended_one_by_one_equal_those_added_at_once() -> None:
    # given more tokens than one block holds
    texts = [f" w{i}" for i in range(300)]
    whole = run_of(texts, [i % 11 for i in range(300)], Origin.SAMPLED)
    # when they arrive singly
    tokens = Tokens(whole[:0])
    for i in range(300):
        tokens.append(whole[i : i + 1])
    # then all results are the same
    at_once = Tokens(whole)
    assert tokens.texts == at_once.texts == texts
    assert tokens.marks == at_once.marks
    assert [tokens.record(i) for i in (0, 63, 64, 65, 299)] == [whole.record(i) for i in (0, 63, 64, 65, 299)]
    assert np.array_equal(tokens.ids(), whole.ids)
    assert np.array_equal(tokens.entropy(70), whole.entropy[70:])
    assert tokens.generated(290).tolist() == list(range(290, 300))


def test_marks_contain_the_surprise_step_of_a_token() -> None:
    bits = [0.1, 0.5, 1.5, 3.0, 5.0, 8.0, None]
    for run in (run_of(list("abcdefg"), bits, Origin.TYPED), run_of(list("abcdefg") * 2, bits * 2, Origin.TYPED)):
        steps = [mark & STEP for mark in Tokens(run).marks[:7]]
        assert steps == [step_of(b + 1e-6) if b else 0 for b in bits]
    assert Tokens(run_of(["x"], [9.0], Origin.SAMPLED)).marks[0] & RARE


def test_template_tokens_and_end_tokens_are_not_marked_as_generated() -> None:
    run = TokenRun.concat([template("<|im_start|>"), ended(written("Hi"))])
    marks = Tokens(run).marks
    assert marks[0] & TEMPLATE
    assert marks[1] & GENERATED
    assert marks[2] & END
    assert Tokens(run).generated().tolist() == [1]


def test_new_numbers_for_the_same_tokens_are_applied_in_place() -> None:
    # given tokens that were never scored
    scored = written("You| could=a| visit=e")
    plain = TokenRun.unscored(scored.ids.tolist(), scored.token_bytes, scored.texts, Origin.SAMPLED)
    tokens = Tokens(plain)
    assert [m & STEP for m in tokens.marks] == [0, 0, 0]
    # when the scores come, with one more token
    more = TokenRun.concat([scored, written(" Rome=b", first_id=9)])
    assert tokens.take_numbers(more)
    # then they are there
    assert [m & STEP for m in tokens.marks] == [0, 1, 5, 2]
    assert tokens.record(3).text == " Rome"
    # and other tokens are refused
    assert not tokens.take_numbers(written("No| way", first_id=77))
    assert len(tokens) == 4
