"""The report of the sampler's stages, its transport and storage, and the replay of a draw from it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, replay_draw
from runtime.backends.fake import Behaviour
from runtime.errors import InvalidRequestError
from runtime.numerics.stage_table import StageTable
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.records import Origin, TokenRecord, TokenRun
from runtime.sampling.chain import make_sampler
from runtime.sampling.report import report
from runtime.transport.arrays import ArrayError, pack_run, unpack_run
from tests.fakes import fake_model, some_ids

PROMPT = some_ids(3, 20)
MANY = SamplingOptions(
    temperature=1.4,
    top_k=90,
    top_p=0.97,
    min_p=0.001,
    typical_p=0.95,
    xtc_probability=0.6,
    xtc_threshold=0.02,
    repetition_penalty=1.2,
    presence_penalty=0.1,
    frequency_penalty=0.1,
    penalty_window=12,
    dry_multiplier=0.8,
    dry_breakers=(),
    logit_bias={5: 2.0, 200: 3.0},
    banned_tokens=(7,),
)
ALL = [MANY, SamplingOptions(), SamplingOptions(temperature=0.0), SamplingOptions(temperature=0.7, top_p=0.9, top_k=40)]


@pytest.fixture(scope="module")
def model() -> Iterator[LanguageModel]:
    with fake_model(Behaviour()) as model:
        yield model


def told(model: LanguageModel, sampling: SamplingOptions, n: int = 25, seed: int = 11) -> list[TokenRecord]:
    options = GenerationOptions(max_tokens=n, sampling=sampling, stages=True, seed=seed, ignore_eos=True, resolve=False)
    return list(model.generate_sync(PROMPT, options))


@pytest.mark.parametrize("sampling", ALL, ids=str)
def test_a_replay_with_the_original_settings_gives_the_original_draw(model: LanguageModel, sampling: SamplingOptions) -> None:
    records = told(model, sampling)
    assert len(records) == 25
    for i, record in enumerate(records):
        assert len(record.top_ids) >= 64
        again = replay_draw(record)
        assert again.whole
        assert again.stages == record.stages
        assert again.token == record.token_id  # also far beyond the likeliest 64
        # the full row suffices for every draw
        path = [*PROMPT, *(r.token_id for r in records[:i])]
        row = model.next_token_logprobs_sync(path)
        full = replay_draw(row, sampling, seed=11, position=len(path), history=path, shift=record.shift or 0.0)
        assert full.token == record.token_id
        assert [s.name for s in full.stages] == [s.name for s in record.stages or ()]
        assert [s.kept for s in full.stages] == [s.kept for s in record.stages or ()]


def test_a_damaged_random_number_of_a_stored_draw_is_detected(model: LanguageModel) -> None:
    # given stored draws with a changed number
    run = runs_of(model, SamplingOptions(temperature=2.0))
    table = run.stages
    assert table is not None
    other = replace(table, u=(table.u + 0.37) % 1.0)
    # then it does not lead to any of the tokens
    assert [other.as_drawn(i) == token for i, token in enumerate(run.ids)] == [False] * len(run)
    assert [table.as_drawn(i) for i in range(len(run))] == run.ids.tolist()


def test_each_stage_reports_what_it_kept_and_removed(model: LanguageModel) -> None:
    for record in told(model, MANY):
        stages = record.stages
        assert stages is not None
        assert [s.name for s in stages] == [
            "raw", "bias", "penalties", "dry", "temperature", "top_k", "top_p", "min_p", "typical", "xtc", "draw",
        ]  # fmt: skip
        by_name = {s.name: s for s in stages}
        assert by_name["raw"].kept == model.info.vocab_size
        assert by_name["bias"].kept == model.info.vocab_size - 1
        assert by_name["bias"].cut in ((7,), ())
        assert by_name["top_k"].kept == 90
        kept = [s.kept for s in stages]
        assert kept == sorted(kept, reverse=True)
        for stage in stages:
            assert list(stage.before) == sorted(stage.before, reverse=True)
            np.testing.assert_allclose(stage.cumulative, np.cumsum(stage.before))
            assert stage.cumulative[-1] < 1 + 1e-6
            assert sum(a > 0 for a in stage.after) <= stage.kept
        # raw probabilities equal those of the record
        raw = dict(zip(by_name["raw"].ids, by_name["raw"].after, strict=True))
        for token, logprob in zip(record.top_ids, record.top_logprobs, strict=True):
            if token in raw:
                assert abs(np.log(raw[token]) - logprob) < 1e-5
        # u lies within the range of the drawn token
        last = by_name["draw"]
        assert last.u is not None
        assert by_name["xtc"].u is not None
        place = last.ids.index(record.token_id)
        assert last.after[place] > 0
        assert last.cumulative[place] - last.before[place] - 1e-6 <= last.u <= last.cumulative[place] + 1e-6


def test_there_is_no_report_unless_requested(model: LanguageModel) -> None:
    record = next(iter(model.generate_sync(PROMPT, GenerationOptions(max_tokens=1))))
    assert record.stages is None
    with pytest.raises(InvalidRequestError, match="stages=True"):
        replay_draw(record)


def test_a_report_changes_no_draw(model: LanguageModel) -> None:
    plain = GenerationOptions(max_tokens=25, sampling=MANY, seed=11, ignore_eos=True, resolve=False)
    assert [r.token_id for r in model.generate_sync(PROMPT, plain)] == [r.token_id for r in told(model, MANY)]


def test_a_draw_is_replayed_over_the_stored_head_with_other_settings(model: LanguageModel) -> None:
    for record in told(model, SamplingOptions(temperature=0.9, top_k=40)):
        # top-k within the head needs no more than the head
        again = replay_draw(record, SamplingOptions(temperature=0.9, top_k=40))
        assert again.token == record.token_id
        assert not again.whole
        assert replay_draw(record, SamplingOptions(temperature=0.0)).token == record.top_ids[0]
        banned = replay_draw(record, SamplingOptions(temperature=0.0, banned_tokens=(record.top_ids[0],)))
        assert banned.token == record.top_ids[1]
        with pytest.raises(InvalidRequestError, match="no random number for the stage 'xtc'"):
            replay_draw(record, SamplingOptions(xtc_probability=0.5))
        assert replay_draw(record, SamplingOptions(xtc_probability=0.5), seed=1, position=3).token is not None
        with pytest.raises(InvalidRequestError, match="top_p"):
            replay_draw(record, SamplingOptions(top_p=7.0))


OTHERS = [
    SamplingOptions(temperature=1.0),
    SamplingOptions(temperature=0.7),
    SamplingOptions(temperature=1.6),
    SamplingOptions(temperature=1.0, presence_penalty=0.001),
    SamplingOptions(temperature=0.9, top_p=0.5),
    SamplingOptions(min_p=0.2, logit_bias={3: 1.0}),
]


@pytest.mark.slow
@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_replay_over_the_head_gives_the_draw_of_the_whole_row_or_none(model: LanguageModel, other: SamplingOptions) -> None:
    records = told(model, SamplingOptions(temperature=0.6), n=30, seed=3)
    said = 0
    for i, record in enumerate(records):
        path = [*PROMPT, *(r.token_id for r in records[:i])]
        row = model.next_token_logprobs_sync(path)
        again = replay_draw(record, other, seed=3, position=len(path))
        whole = replay_draw(row, other, seed=3, position=len(path))
        assert again.token in (whole.token, None)
        said += again.token is not None
        assert [stage.name for stage in again.stages] == [stage.name for stage in whole.stages]
        known = {*record.top_ids, record.token_id, *(record.stages or ())[0].ids}
        assert all(known.issuperset(stage.ids) for stage in again.stages)
        # the random numbers are stored in the record
        assert replay_draw(record, other).token == again.token
    assert said >= 8


def test_a_replay_beyond_the_stored_head_gives_no_token_among_ties() -> None:
    # given a few likely tokens, and thousands that are as likely as the last of the 64 stored ones
    row = np.full(3000, 0.09 / 2990)
    row[1000:1010] = 0.091
    logprobs = np.log(row).astype(np.float32)
    seed = next(s for s in range(200) if make_sampler(SamplingOptions(), s).draw(logprobs, 3)[1] > 0.97)
    narrow = make_sampler(SamplingOptions(top_k=5), seed).trace(logprobs, 3)
    order = np.lexsort((np.arange(3000), -logprobs))[:64]
    record = replace(
        TokenRun.unscored([narrow.token], [b"x"], ["x"], Origin.SAMPLED),
        rank=np.ones(1, np.int32),
        logprob=logprobs[[narrow.token]],
        top_ids=order[None].astype(np.int32),
        top_logprobs=logprobs[order][None],
        stages=report(narrow),
    ).record(0)
    # when nothing is removed any more
    found = replay_draw(record, SamplingOptions(temperature=2.0))
    # then the drawn token lies beyond the stored ones, and none of those is given in its place
    assert make_sampler(SamplingOptions(temperature=2.0), seed).draw(logprobs, 3)[0] not in order
    assert found.token is None


def test_an_edit_without_effect_changes_no_replayed_token(model: LanguageModel) -> None:
    for record in told(model, SamplingOptions(temperature=0.6), n=30, seed=3):
        plain, edited = (replay_draw(record, SamplingOptions(presence_penalty=amount)).token for amount in (0.0, 0.001))
        assert plain == edited


def test_tokens_removed_by_a_grammar_stay_removed_under_other_settings() -> None:
    rng = np.random.default_rng(5)
    row = np.log(rng.dirichlet(np.full(400, 0.3))).astype(np.float32)
    likeliest = np.argsort(-row)
    for allowed_ids in (likeliest[[3, 9, 70, 300]], likeliest[::3]):
        allowed = np.zeros(400, bool)
        allowed[allowed_ids] = True
        said = 0
        for seed in range(20):
            traced = make_sampler(SamplingOptions(temperature=0.6), seed).trace(row, 4, allowed=allowed)
            stages = report(traced).stages(0)
            record = TokenRecord(
                token_id=traced.token, token_bytes=b"", text="", logprob=float(row[traced.token]), rank=None, entropy=None,
                top_ids=tuple(likeliest[:64].tolist()), top_logprobs=tuple(row[likeliest[:64]].tolist()),
                covered_mass=None, origin=Origin.SAMPLED, stages=stages,
            )  # fmt: skip
            for other in (SamplingOptions(), SamplingOptions(temperature=0.8, top_p=0.9), SamplingOptions(temperature=0.0)):
                again = replay_draw(record, other, seed=seed, position=4)
                whole = replay_draw(row, other, seed=seed, position=4, allowed=allowed)
                assert again.token in (whole.token, None)
                said += again.token is not None
                assert again.stages[1].name == "grammar"
                assert again.stages[1].kept == len(allowed_ids)
        assert said > 40


def test_a_row_without_a_record_needs_settings_and_random_numbers(model: LanguageModel) -> None:
    row = model.next_token_logprobs_sync(PROMPT)
    with pytest.raises(InvalidRequestError, match="settings"):
        replay_draw(row)
    with pytest.raises(InvalidRequestError, match="random number"):
        replay_draw(row, SamplingOptions(temperature=0.5))
    with pytest.raises(InvalidRequestError, match="a row is"):
        replay_draw(row[None], SamplingOptions(), seed=1, position=1)


def runs_of(model: LanguageModel, sampling: SamplingOptions) -> TokenRun:
    import asyncio

    options = GenerationOptions(max_tokens=9, sampling=sampling, stages=True, seed=2, ignore_eos=True)

    async def runs() -> list[TokenRun]:
        return [run async for run in model.generate_runs(PROMPT, options)]

    return TokenRun.concat(asyncio.run(runs()))


def test_stage_reports_survive_transport_and_storage(model: LanguageModel) -> None:
    run = runs_of(model, MANY)
    assert unpack_run(pack_run(run))[:].to_columns().keys() == run.to_columns().keys()
    assert list(unpack_run(pack_run(run))) == list(run)
    assert list(TokenRun.from_columns(run.to_columns())) == list(run)
    # next to tokens without reports, and with other stages
    plain = TokenRun.unscored([1], [b"a"], ["a"], run.record(0).origin)
    joined = TokenRun.concat([plain, run, runs_of(model, SamplingOptions()), plain])
    assert joined.record(0).stages is None
    assert joined.record(3).stages == run.record(2).stages
    assert joined.record(3).redrawn == run.record(2).redrawn
    assert joined[2:5].record(1).stages == run.record(2).stages
    assert list(unpack_run(pack_run(joined))) == list(joined)
    assert plain.to_columns().keys() == TokenRun.from_columns(plain.to_columns()).to_columns().keys()


@pytest.mark.parametrize("bad", ["missing", "type", "shape", "edits", "shared", "wide", "name", "rows"])
def test_damaged_stage_columns_are_refused(model: LanguageModel, bad: str) -> None:
    columns: dict[str, Any] = dict(runs_of(model, SamplingOptions()).to_columns())
    match bad:
        case "missing":
            del columns["stage_u"]
        case "type":
            columns["stage_kept"] = columns["stage_kept"].astype(np.float32)
        case "shape":
            columns["stage_held"] = columns["stage_held"][:, :, :3]
        case "edits":
            columns["stage_rows"] = columns["stage_rows"] + np.uint8(3)
        case "shared":
            columns["stage_shared"] = columns["stage_shared"] + np.uint16(1000)
        case "wide":
            columns["stage_ids"] = np.concatenate([columns["stage_ids"], columns["top_ids"]], axis=1)
        case "name":
            columns["stage_names"] = columns["stage_names"].astype(np.uint8) + np.uint8(200)
        case "rows":
            columns |= StageTable.empty(3).to_columns(columns["top_ids"][:3], columns["top_logprobs"][:3])
    with pytest.raises(InvalidRequestError):
        TokenRun.from_columns(columns)
    from runtime.transport.arrays import pack_array

    with pytest.raises(ArrayError):
        unpack_run({name: pack_array(column) for name, column in columns.items()})
