"""Stop strings, whatever the tokens: against a search that looks at the whole text after every character."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from runtime import LanguageModel, run_sync
from runtime.numerics.scoring import empty_scores
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Finish, TokenRun
from runtime.scheduler.decode.rows import DecodeVocabulary, Stream
from runtime.scheduler.decode.stops import StopFinder
from runtime.scheduler.jobs import GenerateJob
from tests.fakes import fake_model, reference

SCORES = empty_scores(1, 0)
LETTERS = "abé李🙂"
Stops = st.lists(st.text(LETTERS, min_size=1, max_size=4), min_size=1, max_size=6)
Pieces = st.lists(st.text(LETTERS, max_size=5), max_size=12)


def naive(text: str, stops: Sequence[str]) -> int | None:
    """Where the text is cut: at the stop string that is complete first, the longest of several."""
    for end in range(1, len(text) + 1):
        found = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            return min(found)
    return None


def longest_beginning(text: str, stops: Sequence[str]) -> int:
    """Characters at the end that some stop string begins with."""
    return max(n for n in range(len(text) + 1) if any(stop.startswith(text[len(text) - n :]) for stop in stops))


@given(Stops, Pieces)
def test_the_finder_agrees_with_looking_again_after_every_character(stops: list[str], pieces: list[str]) -> None:
    finder, text = StopFinder(stops), ""
    for piece in pieces:
        found = finder.feed(piece)
        cut = naive(text + piece, stops)
        assert (found is None) == (cut is None)
        if found is not None:
            assert len(text) + found == cut
            return
        text += piece
        assert finder.pending == longest_beginning(text, stops)


@given(Stops, st.text(LETTERS, max_size=30), st.data())
def test_what_a_stream_shows_is_the_text_before_the_stop_however_it_is_cut_into_tokens(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    # given tokens that may begin and end inside characters
    whole = text.encode()
    borders = sorted(data.draw(st.sets(st.integers(0, len(whole)), max_size=len(whole))) | {0, len(whole)})
    vocabulary = [whole[a:b] for a, b in itertools.pairwise(borders)] or [b""]
    runs: list[TokenRun] = []
    options = GenerationOptions(stop=tuple(stops), top_k=0)
    job = GenerateJob(np.zeros(1, np.int32), None, options=options, on_run=runs.append)
    stream = Stream(job, DecodeVocabulary(vocabulary, frozenset(), 1000))
    cut = naive(text, stops)
    shown = ""
    for token in range(len(vocabulary)):
        if stream.finish:
            break
        stream.take(token, 0.5)
        stream.record(SCORES, 0)
        stream.deliver()
        shown = "".join(run.text for run in runs)
        # then nothing is shown that is not before the stop string
        assert text.startswith(shown)
        assert cut is None or len(shown) <= cut
    if cut is None:
        stream.deliver(ended=True)
        assert "".join(run.text for run in runs) == text
        assert stream.finish is Finish.NONE
    else:
        assert shown == text[:cut]
        assert stream.finish is Finish.STOP
        assert [r.finish_reason for run in runs for r in run][-1] == "stop"
    ids = [int(i) for run in runs for i in run.ids]
    assert ids == list(range(len(ids)))


def test_a_stop_string_that_stands_in_the_prompt_alone_stops_nothing() -> None:
    prompt = [ord(c) for c in "stop here stop"]
    with fake_model() as model:
        options = GenerationOptions(max_tokens=20, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
        said = "".join(r.text for r in model.generate_sync(prompt, options))
        first = int(reference(prompt).argmax())
        # a stop string that the last token of the prompt and the first of the answer would make up
        joined = "p" + bytes([first]).decode(errors="replace")
        again = GenerationOptions(
            max_tokens=20, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0, stop=("stop here", joined)
        )
        assert joined not in said
        assert "".join(r.text for r in model.generate_sync(prompt, again)) == said


def test_a_stop_string_that_is_never_complete_loses_nothing() -> None:
    with fake_model() as model:
        options = GenerationOptions(max_tokens=6, seed=3, ignore_eos=True, top_k=0)
        whole = list(model.generate_sync([1, 2, 3], options))
        text = "".join(r.text for r in whole)
        held = GenerationOptions(max_tokens=6, seed=3, ignore_eos=True, top_k=0, stop=(text + "never",))
        assert [r.token_id for r in model.generate_sync([1, 2, 3], held)] == [r.token_id for r in whole]


def test_the_branches_of_a_request_share_what_is_made_of_a_long_stop_string() -> None:
    options = GenerationOptions(max_tokens=2, ignore_eos=True, top_k=0, stop=("x" * 5000,))

    async def peak(model: LanguageModel, branches: int) -> int:
        tracemalloc.start()
        async for _ in model.continue_many([1, 2, 3], branches, options):
            pass
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return held

    with fake_model() as model:
        alone = run_sync(peak(model, 1))
        assert run_sync(peak(model, 20)) < 5 * alone


def test_long_stop_strings_take_no_memory_once_their_request_has_ended() -> None:
    options = GenerationOptions(max_tokens=2, ignore_eos=True, top_k=0, stop=("x" * 50_000,))
    with fake_model() as model:
        tracemalloc.start()
        list(model.generate_sync([1, 2, 3], options))
        list(model.generate_sync([1, 2, 3], GenerationOptions(max_tokens=2, ignore_eos=True, top_k=0)))
        held, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak > 5_000_000
    assert held < peak / 10
