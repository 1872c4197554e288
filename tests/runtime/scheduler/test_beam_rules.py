"""Beams under a grammar and with stop strings: against all texts there are, and a search written down over strings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from runtime import BeamOptions, GrammarError
from runtime.grammar.grammars import Grammars, GrammarVocabulary
from runtime.grammar.source import Grammar
from runtime.numerics.ranking import Ranked
from runtime.records import Finish, Float32
from runtime.scheduler.beam.beam_rules import BeamRules
from runtime.scheduler.beam.beam_search import BeamSearch, hypothesis
from tests.runtime.scheduler.beam_naive import Path, World, everything, search

PIECES = (b"a", b"b", b"ab", b"ba", b"\xc3", b"\xa9", b"<eos>")
EOS = frozenset({6})
Case = tuple[Sequence[str], Grammar | None]
CASES: dict[str, Case] = {
    "stops": (["ba", "bb"], None),
    "stop of one letter": (["b"], None),
    "stop across bytes": (["é", "aaa"], None),
    "stop that begins another": (["ab", "abb", "bab"], None),
    "grammar": ((), Grammar.regex("(ab?)+é?")),
    "grammar of few": ((), Grammar.regex("(a|b)(a|bé)")),
    "grammar that ends anywhere": ((), Grammar.lark('start: (A | B)*\nA: "ab"\nB: "ba"')),
    "both": (["bé", "aab"], Grammar.regex("(a|b|é){1,9}")),
}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    encode: Callable[[str], list[int]] = lambda text: [PIECES.index(bytes([byte])) for byte in text.encode()]  # noqa: E731  # short
    made = Grammars(lambda: GrammarVocabulary(PIECES, tuple(EOS), EOS, encode))
    yield made
    made.close()


def world(case: Case, seed: int, limit: int = 4) -> World:
    @functools.cache
    def logprobs(path: Path) -> Float32:
        raw = np.random.default_rng([seed, *path]).normal(size=len(PIECES)) * 2
        made: Float32 = (raw - np.log(np.exp(raw).sum())).astype(np.float32)
        return made

    return World(PIECES, EOS, logprobs, *case, limit=limit)


def found(grammars: Grammars, world: World, options: BeamOptions) -> list[tuple[Path, float, str | None, str]]:
    """Ids, score, reason and text of our search's hypotheses, best first."""
    constraint = None if world.grammar is None else grammars.constraint(world.grammar)
    stops, rules = tuple(world.stops), None
    if stops or constraint is not None:
        rules = BeamRules(stops, constraint, eos=world.eos, token_bytes=world.pieces)
    ours = BeamSearch(options, world.eos, world.limit, Finish.LENGTH, rules)
    paths: list[Path] = [()]
    while not ours.done:
        step = ours.advance([Ranked(world.logprobs(path)) for path in paths], None)
        paths = [(*paths[parent], token) for parent, token in zip(step.parents, step.tokens, strict=True)]
    told = [hypothesis(one, 2, world.pieces) for one in ours.complete]
    return [(tuple(one.ids), one.score, one.finish_reason, one.text) for one in told]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", CASES)
def test_beams_that_are_wide_enough_find_the_best_of_all_texts(grammars: Grammars, name: str) -> None:
    # given so many beams that none is ever pruned
    given = world(CASES[name], 1)
    every = everything(given)
    got = found(grammars, given, BeamOptions(width=len(PIECES) ** 4, early_stopping="never", length_penalty=0.7))
    # then every hypothesis is there, in the order of the scores, with its text cut before the stop
    assert {path for path, *_ in got} == set(every)
    assert len(got) == len(every)
    for path, score, reason, text in got:
        assert score == pytest.approx(given.total(path) / len(path) ** 0.7, abs=1e-5)
        assert (reason, text) == (given.ending(path), given.shown(path))
    scores = [score for _, score, *_ in got]
    assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
@pytest.mark.parametrize("width", [2, 3, 5])
@pytest.mark.parametrize("name", CASES)
def test_a_narrow_search_prunes_as_written_down(grammars: Grammars, name: str, width: int) -> None:
    for seed in range(3):
        given = world(CASES[name], seed, limit=5)
        options = BeamOptions(width=width, early_stopping="never", length_penalty=2.0)
        got = found(grammars, given, options)
        wanted = search(given, width, 2.0)
        assert [path for path, *_ in got] == [path for path, _ in wanted]
        assert [score for _, score, *_ in got] == pytest.approx([score for _, score in wanted], abs=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_one_beam_takes_the_likeliest_token_that_is_allowed(grammars: Grammars, name: str) -> None:
    given = world(CASES[name], 2, limit=6)
    path: Path = ()
    while not path or not given.ending(path):
        row = given.logprobs(path)
        path = (*path, max(given.next(path), key=lambda token: float(row[token])))
    [(got, _, reason, text)] = found(grammars, given, BeamOptions(width=1))
    assert (got, reason, text) == (path, given.ending(path), given.shown(path))


def test_a_beam_that_the_grammar_leads_nowhere_is_pruned_and_others_go_on(grammars: Grammars) -> None:
    # given two ways, the likelier one of which has no end
    given = world(((), Grammar.lark('start: "a" NONE | "ba"\nNONE: /[^\\s\\S]/')), 0)
    got = found(grammars, given, BeamOptions(width=3))
    assert {text for *_, text in got} == {"ba"}


def test_where_no_beam_can_go_on_it_is_an_error(grammars: Grammars) -> None:
    given = world(((), Grammar.lark('start: "a" NONE\nNONE: /[^\\s\\S]/')), 0)
    with pytest.raises(GrammarError, match="after 1 tokens: it allows nothing here, and no hypothesis is complete"):
        found(grammars, given, BeamOptions(width=3))


def test_a_stop_inside_an_unfinished_answer_is_incomplete(grammars: Grammars) -> None:
    for grammar, finish in ((Grammar.regex("(ab)+"), Finish.STOP_INSIDE), (Grammar.regex("a*b*a*"), Finish.STOP)):
        rules = BeamRules(("b",), grammars.constraint(grammar), eos=EOS, token_bytes=PIECES)
        after = rules.after(rules.after(None, 0, Finish.NONE), 1, Finish.NONE)
        assert (after.finish, after.cut) == (finish, 1)


def test_beams_run_on_behind_many_that_a_stop_ends() -> None:
    # given one beam whose 20 likeliest tokens end it
    pieces = [b"."] * 20 + [b"a"] * 20
    rules = BeamRules((".",), None, eos=frozenset(), token_bytes=pieces)
    ours = BeamSearch(BeamOptions(width=2, ignore_eos=True), frozenset(), 5, Finish.LENGTH, rules)
    row = np.log(np.arange(40, 0, -1, dtype=np.float32) / 820)
    # then the next two run on
    assert ours.advance([Ranked(row)], None).tokens == (20, 21)


def test_a_stop_before_an_unfinished_character_is_cut_as_well() -> None:
    pieces = (b"a \xe2", b"b")
    rules = BeamRules((" ",), None, eos=frozenset(), token_bytes=pieces)
    ours = BeamSearch(BeamOptions(width=1, ignore_eos=True), frozenset(), 5, Finish.LENGTH, rules)
    ours.advance([Ranked(np.log(np.array([0.9, 0.1], np.float32)))], None)
    assert [hypothesis(one, 2, pieces).text for one in ours.complete] == ["a"]
