"""The masks of a constraint compared with llguidance over bytes; rollback and forks."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pytest

from runtime.errors import GrammarError, SessionClosedError
from runtime.grammar.constraint import Constraint
from runtime.grammar.grammars import Grammars, GrammarVocabulary
from runtime.grammar.source import Grammar
from runtime.text.tokenizer import Tokenizer
from tests.runtime.grammar.judge import accepts, begins
from tests.runtime.grammar.samples import ALL, JSON
from tests.tiny_models import VOCABULARY, tiny_tokenizer

PADDED = 24  # ids beyond the tokenizer's


@functools.cache
def vocabulary(width: int = VOCABULARY + PADDED) -> GrammarVocabulary:
    tokenizer = Tokenizer(tiny_tokenizer(), eos_token_ids=(2, 0))
    return GrammarVocabulary(tokenizer.byte_vocab(width), (2, 0), frozenset(tokenizer.special_ids), tokenizer.encode)


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    made = Grammars(vocabulary)
    yield made
    made.close()


def walk(constraint: Constraint, seed: int, most: int = 60) -> list[int]:
    """Random allowed tokens up to the end of the answer."""
    rng, tokens = np.random.default_rng(seed), list[int]()
    while not constraint.finished and len(tokens) < most:
        token = int(rng.choice(np.flatnonzero(constraint.allowed())))
        constraint.advance([token])
        tokens.append(token)
        if token in (0, 2):
            break
    return tokens


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL)
def test_a_mask_agrees_with_llguidance_over_the_bytes_of_each_token(grammars: Grammars, name: str) -> None:
    grammar, tokens = ALL[name], vocabulary().tokens
    constraint = grammars.constraint(grammar)
    said, rng = b"", np.random.default_rng(3)
    for _ in range(12):
        if constraint.finished:
            break
        allowed = constraint.allowed()
        assert allowed.shape == (VOCABULARY + PADDED,)
        assert allowed.any()
        assert not allowed[VOCABULARY:].any()
        assert not allowed[1]  # a control token has no text
        assert allowed[0] == allowed[2] == accepts(grammar, said) == constraint.could_end()
        for token in rng.choice(VOCABULARY, 40, replace=False):
            if allowed[token] and token > 2:
                assert begins(grammar, said + tokens[token])
            elif token > 2 and allowed.sum() > 1 and name != "json":  # in JSON our limit on whitespace forbids more
                assert not begins(grammar, said + tokens[token])
        choices = [int(i) for i in np.flatnonzero(allowed) if i > 2]
        if not choices:
            break
        token = int(rng.choice(choices))
        constraint.advance([token])
        said += tokens[token]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("name", ALL)
def test_every_finished_random_walk_is_accepted(grammars: Grammars, name: str, seed: int) -> None:
    constraint = grammars.constraint(ALL[name])
    tokens = walk(constraint, seed, most=400)
    text = b"".join(vocabulary().tokens[t] for t in tokens if t > 2)
    assert tokens[-1] in (0, 2) or constraint.finished
    assert accepts(ALL[name], text)


@pytest.mark.parametrize("name", ALL)
def test_rollback_by_any_number_of_tokens_restores_the_earlier_masks(grammars: Grammars, name: str) -> None:
    tokens = [t for t in walk(grammars.constraint(ALL[name]), 1) if t > 2]
    masks = []
    fresh = grammars.constraint(ALL[name])
    for token in tokens:
        masks.append(fresh.allowed().copy())
        fresh.advance([token])
    for back in range(1, len(tokens) + 1):
        constraint = grammars.constraint(ALL[name])
        for token in tokens:
            constraint.advance([token])
        constraint.rollback(back)
        assert np.array_equal(constraint.allowed(), masks[-back])
        for token in tokens[-back:]:  # and forwards again
            constraint.advance([token])
        assert constraint.finished == fresh.finished


def test_a_fork_does_not_change_the_original(grammars: Grammars) -> None:
    tokens = walk(grammars.constraint(JSON), 2)
    one = grammars.constraint(JSON)
    for token in tokens[:5]:
        one.advance([token])
    before = one.allowed().copy()
    other = one.fork()
    assert np.array_equal(other.allowed(), before)
    walk(other, 9)
    assert np.array_equal(one.allowed(), before)
    for token in tokens[5:]:
        one.advance([token])


def test_a_prefix_is_replayed_and_a_wrong_one_names_its_token(grammars: Grammars) -> None:
    tokens = [t for t in walk(grammars.constraint(ALL["lark"]), 2) if t > 2]
    one = grammars.constraint(ALL["lark"], tokens[:2])
    two = grammars.constraint(ALL["lark"])
    for token in tokens[:2]:
        two.advance([token])
    assert np.array_equal(one.allowed(), two.allowed())
    with pytest.raises(GrammarError, match=r"token id 1 cannot be token 2 of the answer"):
        grammars.constraint(ALL["lark"], [tokens[0], 1])


def test_nothing_may_follow_a_complete_answer(grammars: Grammars) -> None:
    tokenizer = Tokenizer(tiny_tokenizer(), eos_token_ids=(2,))
    with pytest.raises(GrammarError, match="complete after 3 tokens"):
        grammars.constraint(Grammar.regex("xyz"), [tokenizer.encode(c)[0] for c in "xyz"])
    constraint = grammars.constraint(Grammar.regex("x"))
    constraint.advance([tokenizer.encode("x")[0]])
    assert constraint.finished
    with pytest.raises(GrammarError, match="lets nothing follow"):
        constraint.allowed()


def test_a_dead_end_before_the_answer_is_complete_raises(grammars: Grammars) -> None:
    constraint = grammars.constraint(Grammar.lark('start: "q" X\nX: /[^\\s\\S]/'))
    with pytest.raises(GrammarError, match="not complete"):
        walk(constraint, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "grammar",
    [
        Grammar.lark("start: " + " ".join(["a?"] * 3000) + '\na: "x"'),
        Grammar.lark('start: "b" n\nn: ' + " ".join(["a?"] * 3000) + '\na: "x"'),
        Grammar.json_schema({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(3000)}}),
    ],
)
def test_a_grammar_with_too_many_alternatives_to_follow_raises(grammars: Grammars, grammar: Grammar) -> None:
    with pytest.raises(GrammarError, match="items"):
        walk(grammars.constraint(grammar), 0)


def test_an_excessive_rollback_and_a_premature_eos_are_refused(grammars: Grammars) -> None:
    constraint = grammars.constraint(Grammar.regex("ab*"))
    with pytest.raises(GrammarError, match="1 tokens cannot be taken back of 0"):
        constraint.rollback(1)
    with pytest.raises(GrammarError, match="token id 2 cannot be token 1"):
        constraint.advance([2])  # eos, where the answer cannot end


def test_could_end_checks_replacement_text_without_changing_the_state(grammars: Grammars) -> None:
    tokenizer = Tokenizer(tiny_tokenizer(), eos_token_ids=(2,))
    constraint = grammars.constraint(Grammar.regex("ab?c*"))
    for char in "abcc":
        constraint.advance([tokenizer.encode(char)[0]])
    assert constraint.could_end()
    assert constraint.could_end(2)
    assert not constraint.could_end(4)
    assert constraint.could_end(4, b"ac")
    assert not constraint.could_end(4, b"bc")
    assert not constraint.could_end(0, b"\xff")
    assert constraint.allowed()[tokenizer.encode("c")[0]]  # and its state is unchanged


def test_a_vocabulary_without_an_eos_ends_where_nothing_can_follow() -> None:
    whole = vocabulary()
    grammars = Grammars(lambda: GrammarVocabulary(whole.tokens, (), whole.special, whole.encode))
    constraint = grammars.constraint(Grammar.regex("a{2}"))
    assert constraint.allowed().shape == (len(whole.tokens),)
    walk(constraint, 0)
    assert constraint.finished
    grammars.close()


def test_forced_text_stays_within_a_vocabulary_narrower_than_the_tokenizer() -> None:
    width = 600
    grammars = Grammars(lambda: vocabulary(width))
    grammar = Grammar.regex("The statement is forced: module [ab]")
    constraint = grammars.constraint(grammar)
    tokens = walk(constraint, 0)
    assert accepts(grammar, b"".join(vocabulary().tokens[t] for t in tokens if t > 2))
    assert max(tokens) < width
    grammars.close()


def test_closed_grammars_refuse_to_build_constraints() -> None:
    grammars = Grammars(vocabulary)
    assert not grammars.ready(JSON)
    grammars.prepare(JSON)
    assert grammars.ready(JSON)
    grammars.close()
    grammars.close()
    with pytest.raises(SessionClosedError):
        grammars.constraint(JSON)


def test_an_invalid_grammar_is_not_cached(grammars: Grammars) -> None:
    for _ in range(2):
        with pytest.raises(GrammarError, match="unclosed"):
            grammars.prepare(Grammar.regex("("))
        assert not grammars.ready(Grammar.regex("("))
