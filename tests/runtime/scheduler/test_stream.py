"""Streams: stop strings, partial characters, and the reasons to end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest

from runtime import LanguageModel
from runtime.backends.fake import CONTEXT, Behaviour
from runtime.errors import ContextOverflowError
from runtime.numerics.scoring import empty_scores
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Finish, TokenRecord, TokenRun
from runtime.scheduler.decode.rows import DecodeVocabulary, Stream
from runtime.scheduler.jobs import GenerateJob
from tests.fakes import KINDS, fake_model, reference, some_ids

PIECES = ["Hel", "lo", " wor", "ld", "ST", "OP", "S", "a", "\n", "aab", "é", "END"]
VOCAB = [*(p.encode() for p in PIECES), b"\xc3", b"\xa9", b"\xf0\x9f", b"\x99\x82", b"<eos>"]
EOS = len(VOCAB) - 1
SCORES = empty_scores(1, 0)


class Told:
    """A stream that is fed tokens by hand, and what it has sent after each."""

    def __init__(self, stop: Sequence[str] = (), *, context: int = 100, prompt: int = 3, **options: object) -> None:
        self.runs: list[TokenRun] = []
        made = GenerationOptions(stop=tuple(stop), top_k=0, **options)  # type: ignore[arg-type]  # by name
        job = GenerateJob(np.zeros(prompt, np.int32), None, options=made, on_run=self.runs.append)
        self.stream = Stream(job, DecodeVocabulary(VOCAB, frozenset({EOS}), context))

    def feed(self, *tokens: int | str | bytes) -> Told:
        for token in tokens:
            assert self.stream.finish is Finish.NONE
            data = token.encode() if isinstance(token, str) else token
            self.stream.take(data if isinstance(data, int) else VOCAB.index(data), 0.5)
            self.stream.record(SCORES, 0)
            self.stream.deliver()
        return self

    @property
    def records(self) -> list[TokenRecord]:
        return [record for run in self.runs for record in run]

    @property
    def text(self) -> str:
        return "".join(r.text for r in self.records)

    @property
    def reasons(self) -> list[str | None]:
        return [r.finish_reason for r in self.records]


def test_without_stop_strings_every_record_is_sent_at_once() -> None:
    told = Told()
    for n, piece in enumerate(("Hel", "lo", " wor"), 1):
        assert len(told.feed(piece).records) == n


def test_records_wait_while_a_stop_string_is_partly_matched() -> None:
    # given a stop string that spans three tokens
    told = Told(["STOPS"]).feed("Hel", "ST", "OP")
    assert told.text == "Hel"
    # when it is completed, then its text is never sent, and the last record has the reason
    told.feed("S")
    assert told.text == "Hel"
    assert told.reasons[-1] == "stop"
    assert told.stream.finish is Finish.STOP


def test_held_back_records_are_sent_when_the_stop_string_is_not_completed() -> None:
    told = Told(["STOPS"]).feed("ST", "OP")
    assert told.records == []
    told.feed("a")
    assert told.text == "STOPa"
    assert told.reasons == [None, None, None]


def test_a_stop_string_that_begins_and_ends_inside_tokens() -> None:
    told = Told(["o w"]).feed("Hel", "lo")
    assert told.text == "Hel"
    told.feed(" wor")
    assert told.text == "Hell"
    assert [r.token_id for r in told.records] == [0, 1]
    assert told.reasons == [None, "stop"]


def test_a_stop_string_inside_one_token_cuts_its_text() -> None:
    told = Told(["or"]).feed("Hel", " wor")
    assert told.text == "Hel w"
    assert told.reasons == [None, "stop"]
    assert told.records[1].token_bytes == b" wor"


def test_the_first_of_several_stop_strings_wins() -> None:
    told = Told(["ld", "wor"]).feed("Hel", "lo", " wor")
    assert told.text == "Hello "
    told = Told(["OP", "STOP"]).feed("a", "ST")
    assert told.text == "a"
    told.feed("OP")
    assert told.text == "a"  # the longer one begins earlier


def test_overlapping_beginnings_of_a_stop_string_are_found() -> None:
    # "aaab": the match starts one later than it first seemed to
    told = Told(["aab"]).feed("a", "a")
    assert told.text == ""
    told.feed("aab")
    assert told.text == "aa"
    assert told.reasons[-1] == "stop"


def test_a_stop_string_is_matched_across_partial_characters() -> None:
    # given a stop string of two characters whose bytes arrive one by one
    told = Told(["é\n"]).feed("a", b"\xc3")
    assert told.text == "a"
    told.feed(b"\xa9")
    assert told.text == "a"
    told.feed("\n")
    assert told.text == "a"
    assert told.reasons[-1] == "stop"


def test_partial_characters_are_sent_with_the_token_that_completes_them() -> None:
    told = Told().feed(b"\xf0\x9f", b"\x99\x82", b"\xc3", "a")
    assert [r.text for r in told.records[:2]] == ["", "🙂"]
    assert told.text == "🙂\ufffda"
    assert b"".join(r.token_bytes for r in told.records) == b"\xf0\x9f\x99\x82\xc3a"


def test_the_rest_of_an_unfinished_character_is_sent_at_the_end() -> None:
    told = Told(max_tokens=2).feed("a", b"\xf0\x9f")
    assert told.text == "a\ufffd"
    assert told.reasons == [None, "length"]


def test_eos_releases_held_back_records() -> None:
    told = Told(["STOPS"]).feed("ST", EOS)
    assert [r.token_id for r in told.records] == [4, EOS]
    assert told.reasons == [None, "eos"]
    assert told.records[0].text == "ST"


def test_the_name_of_an_eos_is_no_stop_string() -> None:
    told = Told(["eos", "T<"]).feed("ST", EOS)
    assert told.reasons == [None, "eos"]
    told = Told(["eos"], ignore_eos=True).feed(EOS)
    assert told.reasons == ["stop"]


def test_eos_can_be_ignored() -> None:
    told = Told(ignore_eos=True, max_tokens=3).feed(EOS, EOS, EOS)
    assert told.reasons == [None, None, "length"]


def test_the_context_ends_a_stream() -> None:
    # given room for two more tokens of KV: a third can be drawn after them, but nothing after that
    told = Told(context=5, prompt=3).feed("a", "a", "a")
    assert told.reasons == [None, None, "context"]
    assert Told(context=3, prompt=3).feed("a").reasons == ["context"]


def test_eos_is_named_before_length_and_length_ends_a_partial_match() -> None:
    assert Told(max_tokens=1).feed(EOS).reasons == ["eos"]
    told = Told(["STOPS"], max_tokens=2).feed("a", "ST")
    assert told.text == "aST"
    assert told.reasons == [None, "length"]


def test_a_stream_cancelled_in_a_partial_match_loses_nothing() -> None:
    told = Told(["STOPS"]).feed("a", "ST")
    told.stream.deliver(ended=True)
    assert told.text == "aST"


# ---- through the whole engine -------------------------------------------------------------------------------------

GREEDY = SamplingOptions(temperature=0.0)


def stream(model: LanguageModel, ids: list[int], options: GenerationOptions) -> list[TokenRecord]:
    async def main() -> list[TokenRecord]:
        return [record async for record in model.generate(ids, options)]

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_follows_the_likeliest_token_with_all_its_numbers(kind: str) -> None:
    prompt = some_ids(1, 12)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping")) as model:
        options = GenerationOptions(max_tokens=100, sampling=GREEDY, ignore_eos=True, top_k=5)
        records = stream(model, prompt, options)
        path = list(prompt)
        for record in records:
            row = reference(path, kind)
            order = np.argsort(-row, kind="stable")
            assert record.token_id == order[0]
            assert record.rank == 1
            assert record.top_ids == tuple(order[:5].tolist())
            assert record.logprob == pytest.approx(float(row[order[0]]), abs=1e-5)
            assert record.top_logprobs == pytest.approx(row[order[:5]].tolist(), abs=1e-5)
            assert record.entropy == pytest.approx(float(-(np.exp(row) * row).sum()), abs=1e-4)
            path.append(record.token_id)
        assert [r.finish_reason for r in records] == [None] * 99 + ["length"]
        assert list(model.generate_sync(prompt, options)) == records


def test_a_stop_string_ends_a_real_stream_before_it() -> None:
    prompt = some_ids(1, 12)
    with fake_model() as model:
        options = GenerationOptions(max_tokens=60, seed=5, ignore_eos=True)
        whole = stream(model, prompt, options)
        text = "".join(r.text for r in whole)
        stop = text[20:23]
        cut = stream(model, prompt, GenerationOptions(max_tokens=60, seed=5, ignore_eos=True, stop=(stop, "never here")))
        assert "".join(r.text for r in cut) == text[: text.index(stop)]
        assert cut[-1].finish_reason == "stop"
        assert [r.token_id for r in cut] == [r.token_id for r in whole][: len(cut)]
        assert asyncio.run(model.complete("abc", GenerationOptions(max_tokens=3, seed=1)))


def test_eos_first_gives_one_record_and_no_tokens() -> None:
    prompt = some_ids(1, 12)
    first = int(reference(prompt).argmax())
    with fake_model() as model:
        assert asyncio.run(model.sample(prompt, 10, [first], temperature=0.0)) == []
        assert asyncio.run(model.batch_sample([prompt, prompt], 10, [first], temperature=0.0)) == [[], []]


def test_the_models_own_eos_ends_with_its_record() -> None:
    # given the seed of a stream that meets an eos of the fake's vocabulary
    with fake_model() as model:
        for seed in range(200):
            records = stream(model, [1, 2, 3], GenerationOptions(max_tokens=40, seed=seed, top_k=0))
            if records[-1].finish_reason == "eos":
                break
        assert model.is_eos(records[-1].token_id)
        assert not any(model.is_eos(r.token_id) for r in records[:-1])
        longer = stream(model, [1, 2, 3], GenerationOptions(max_tokens=40, seed=seed, top_k=0, ignore_eos=True))
        assert [r.token_id for r in longer[: len(records)]] == [r.token_id for r in records]
        assert longer[-1].finish_reason == "length"


def test_the_context_limit_ends_a_real_stream() -> None:
    with fake_model(context_length=20) as model:
        records = stream(model, some_ids(1, 16), GenerationOptions(max_tokens=60, sampling=GREEDY, ignore_eos=True))
        assert [r.finish_reason for r in records] == [None] * 4 + ["context"]
        full = stream(model, some_ids(1, 20), GenerationOptions(max_tokens=60, sampling=GREEDY, ignore_eos=True))
        assert [r.finish_reason for r in full] == ["context"]
        with pytest.raises(ContextOverflowError, match=r"21 tokens do not fit into the context of 20 \(1 too many\)"):
            stream(model, some_ids(1, 21), GenerationOptions())


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_draws_the_same_alone_in_a_batch_and_on_a_branch(kind: str) -> None:
    prompt = some_ids(1, 12)
    options = GenerationOptions(max_tokens=25, seed=77, ignore_eos=True, top_k=0)
    with fake_model(Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"), max_batch_rows=4) as model:
        alone = [r.token_id for r in stream(model, prompt, options)]

        async def main() -> list[list[int]]:
            seeds = (1, 77, 5, 77, 9, 12)
            prompts = (prompt, prompt, some_ids(2, 3), prompt, some_ids(3, 30), prompt)
            return list(
                await asyncio.gather(
                    *(model.sample(p, 25, [], seed=s) for p, s in zip(prompts, seeds, strict=True)),
                )
            )

        together = asyncio.run(main())
        assert together[1] == together[3] == alone
        assert together[0] != alone
        # a branch at the tenth token continues as the stream did: draws depend on the position, not on the request
        branch = stream(model, [*prompt, *alone[:10]], GenerationOptions(max_tokens=15, seed=77, ignore_eos=True, top_k=0))
        assert [r.token_id for r in branch] == alone[10:]
        model.clear_cache()
        assert [r.token_id for r in stream(model, prompt, options)] == alone


def test_a_context_longer_than_the_model_is_refused() -> None:
    with pytest.raises(ValueError, match="positions"), fake_model(context_length=CONTEXT + 1):
        pass
