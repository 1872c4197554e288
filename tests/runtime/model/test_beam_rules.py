"""Beam search with stop strings and under a grammar, on both backends and over the pipe, against transformers and by hand."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from runtime import (
    BeamOptions,
    GenerationOptions,
    Grammar,
    GrammarError,
    Hypothesis,
    InvalidRequestError,
    LanguageModel,
    Origin,
    SpeculativeOptions,
    UnsupportedFeatureError,
    load,
    spawn,
)
from tests.fakes import fake_model, local, settled, some_ids
from tests.runtime.backends.reference import TOLERANCE, expected, library_model
from tests.runtime.grammar.judge import accepts, begins
from tests.runtime.scheduler.beam_naive import World, search
from tests.tiny_models import tiny_path

PROMPT = [5, 6, 7, 300]
GRAMMAR = Grammar.regex("(the |a |an )?(cat|dog|bird)s?")
OPEN = Grammar.regex("[a-f ]*(cat|dog|bird)[a-z]*")  # an answer can always go on, so that an eos alone ends it


@pytest.fixture(scope="module", params=[("hf", "llama"), ("mlx", "llama"), ("hf", "lfm2"), ("mlx", "gemma3")], ids="-".join)
def loaded(request: pytest.FixtureRequest) -> Iterator[tuple[LanguageModel, str]]:
    backend, name = request.param
    with load(tiny_path(name), backend=backend, threads=1) as model:
        yield model, name


@pytest.fixture
def case(loaded: tuple[LanguageModel, str]) -> Iterator[tuple[LanguageModel, str]]:
    loaded[0].clear_cache()
    yield loaded
    assert settled(loaded[0])[1].leases == 0


def beams(model: LanguageModel, options: BeamOptions) -> list[Hypothesis]:
    return asyncio.run(model.beam_generate(PROMPT, options))


def by_transformers(name: str, model: LanguageModel, options: BeamOptions) -> list[tuple[list[int], float]]:
    """Its beam search with our masks as `prefix_allowed_tokens_fn`: log-probabilities stay those over all tokens."""
    import torch

    def allowed(_: int, ids: Any) -> list[int]:
        said = ids.tolist()[len(PROMPT) :]
        if said and model.is_eos(said[-1]):
            return [said[-1]]
        constraint = local(model).operations.grammars.constraint(OPEN, said)
        return [int(i) for i in np.flatnonzero(constraint.allowed())]

    prompt = torch.tensor([PROMPT])
    out = library_model(name).generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        do_sample=False,
        num_beams=options.width,
        num_return_sequences=options.width,
        max_new_tokens=options.max_tokens,
        length_penalty=options.length_penalty,
        early_stopping=options.early_stopping,
        eos_token_id=2,
        pad_token_id=0,
        use_cache=False,
        output_scores=True,
        return_dict_in_generate=True,
        prefix_allowed_tokens_fn=allowed,
    )
    lengths = (out.beam_indices >= 0).sum(dim=1).tolist()
    rows = zip(out.sequences[:, len(PROMPT) :].tolist(), out.sequences_scores.tolist(), lengths, strict=True)
    return [(ids[:n], score) for ids, score, n in rows]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("width", "penalty"), [(4, 0.5), (3, -2.0)])
def test_under_a_grammar_it_is_the_search_of_transformers_under_the_same_masks(
    case: tuple[LanguageModel, str], width: int, penalty: float
) -> None:
    model, name = case
    options = BeamOptions(width, 9, length_penalty=penalty, grammar=OPEN)
    ours = beams(model, options)
    wanted = by_transformers(name, model, options)
    assert [one.ids for one in ours] == [ids for ids, _ in wanted]
    np.testing.assert_allclose([one.score for one in ours], [score for _, score in wanted], rtol=1e-3)
    for one in ours:
        assert accepts(OPEN, one.text) if one.finish_reason == "eos" else begins(OPEN, one.text)
        assert one.incomplete is (one.finish_reason == "length")


@pytest.mark.slow
def test_a_whole_answer_ends_a_hypothesis_and_its_numbers_are_the_models_own(case: tuple[LanguageModel, str]) -> None:
    model, name = case
    ours = beams(model, BeamOptions(4, 12, length_penalty=0.5, early_stopping="never", grammar=GRAMMAR))
    for one in ours:
        assert one.finish_reason in ("eos", "grammar")
        assert accepts(GRAMMAR, one.text)
        rows = expected(name, [*PROMPT, *one.ids])[len(PROMPT) - 1 : -1]
        own = rows[np.arange(len(one.ids)), one.ids]
        np.testing.assert_allclose(one.run.logprob, own, atol=TOLERANCE)
        assert (one.run.rank > (rows > own[:, None] + TOLERANCE).sum(-1)).all()
        assert (one.run.rank <= (rows > own[:, None] - TOLERANCE).sum(-1) + 1).all()
    assert any(int(Origin.GRAMMAR) in one.run.origin.tolist() for one in ours)
    assert settled(model)[0].grammar_tokens > 0


@pytest.mark.slow
def test_with_stops_it_is_the_search_written_down_over_strings(case: tuple[LanguageModel, str]) -> None:
    # given stop strings that occur in what an unhindered search finds
    model, name = case
    free = beams(model, BeamOptions(3, 6, ignore_eos=True))
    text = "".join(free[0].run.texts)
    stops = tuple({text[2:4], free[1].run.texts[2][-1:] or "x"} - {""})

    @functools.cache
    def logprobs(path: tuple[int, ...]) -> Any:
        return expected(name, [*PROMPT, *path])[-1]

    given = World(model.byte_vocab, frozenset({2}), logprobs, stops, limit=5)
    pruned = Narrow(given)
    ours = beams(model, BeamOptions(3, 5, early_stopping="never", length_penalty=-1.0, stop=stops))
    wanted = search(pruned, 3, -1.0)
    assert [tuple(one.ids) for one in ours] == [path for path, _ in wanted]
    np.testing.assert_allclose([one.score for one in ours], [score for _, score in wanted], atol=1e-3)
    assert [(one.finish_reason, one.text) for one in ours] == [(given.ending(p), given.shown(p)) for p, _ in wanted]
    assert "stop" in {one.finish_reason for one in ours}


class Narrow(World):
    """Of each path only the likeliest continuations: a plain search over the whole vocabulary takes for ever."""

    def __init__(self, world: World) -> None:
        super().__init__(world.pieces, world.eos, world.logprobs, world.stops, world.grammar, world.limit)

    def next(self, path: tuple[int, ...]) -> list[int]:
        row = self.logprobs(path)
        return sorted(np.argsort(-row, kind="stable")[:40].tolist())


def test_the_beginning_of_an_answer_counts_and_branches_and_beams_agree(case: tuple[LanguageModel, str]) -> None:
    model, _ = case
    prefix = model.tokenize("the ")
    ids = [*PROMPT, *prefix]
    [best] = asyncio.run(
        model.beam_generate(ids, BeamOptions(1, 20, grammar=GRAMMAR, grammar_prefix=len(prefix), early_stopping=True))
    )
    greedy = GenerationOptions.from_mapping(
        {"grammar": GRAMMAR, "grammar_prefix": len(prefix), "temperature": 0, "max_tokens": 20}
    )
    records = list(model.generate_sync(ids, greedy))
    assert best.ids == [record.token_id for record in records]
    assert best.finish_reason == records[-1].finish_reason
    assert best.run.origin.tolist() == [int(record.origin) for record in records]


REFUSED: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"speculative": SpeculativeOptions()}, UnsupportedFeatureError, "beam search does not speculate"),
    ({"stop": ("",)}, InvalidRequestError, "none of them empty"),
    ({"stop": "END"}, InvalidRequestError, "sequence of texts"),
    ({"grammar": Grammar.regex(r"[^\s\S]")}, GrammarError, "allows nothing"),
    ({"grammar": Grammar.regex("(")}, GrammarError, "unclosed"),
    ({"grammar": "a+"}, GrammarError, "made by Grammar"),
    ({"grammar": GRAMMAR, "ignore_eos": True}, GrammarError, "contradicts a grammar"),
    ({"grammar": GRAMMAR, "eos_token_ids": (3,)}, GrammarError, "contradicts a grammar"),
    ({"grammar": GRAMMAR, "grammar_prefix": 99}, InvalidRequestError, "grammar_prefix=99 of"),
    ({"grammar_prefix": 2}, InvalidRequestError, "without a grammar"),
]


@pytest.mark.slow
def test_mistakes_are_refused_before_compute_here_and_over_the_pipe() -> None:
    async def scenario(model: LanguageModel) -> None:
        for options, error, says in REFUSED:
            with pytest.raises(error, match=says):
                await model.beam_generate([1, 2, 3], BeamOptions(2, 4, **options))
        wrong: Any = GenerationOptions()
        with pytest.raises(InvalidRequestError, match="BeamOptions"):
            await model.beam_generate([1, 2, 3], wrong)
        assert model.metrics().tokens_computed == 0
        # and then it works
        found = await model.beam_generate([1, 2, 3], BeamOptions(2, 30, grammar=GRAMMAR, stop=("t",)))
        assert all(accepts(GRAMMAR, one.text) or one.incomplete for one in found)
        assert model.metrics().tokens_computed > 0

    async def both() -> None:
        with load("x", "mock") as here:
            await scenario(here)
        async with await spawn("x", "mock") as there:
            await scenario(there)

    asyncio.run(both())


def test_a_search_that_is_given_up_leaves_nothing() -> None:
    async def main(model: LanguageModel) -> None:
        options = BeamOptions(4, 300, grammar=Grammar.regex("[a-z]{200}"), stop=("nothing of it",))
        begun = asyncio.Event()
        task = asyncio.create_task(model.beam_generate(some_ids(1, 9), options, on_step=lambda _: begun.set()))
        await begun.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    with fake_model() as model:
        asyncio.run(main(model))
