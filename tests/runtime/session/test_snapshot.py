"""A resumed snapshot continues as if never interrupted: in this process, behind the pipe, and within a structured answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from runtime import (
    AdapterOf,
    ContextOverflowError,
    GenerationOptions,
    Grammar,
    InvalidRequestError,
    SamplingOptions,
    Session,
    SessionConfig,
    Snapshot,
    SnapshotFormatError,
    SnapshotMismatchError,
    load,
)
from tests.runtime.session.subjects import Subject, greedy, piped, subject
from tests.tiny_models import tiny_path

SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["rain", "süß"]}, "n": {"type": "integer", "maximum": 99, "minimum": 0}},
    "required": ["name", "n"],
    "additionalProperties": False,
}
WARM = SamplingOptions(temperature=1.3, top_p=0.95, repetition_penalty=1.1, dry_multiplier=0.5, xtc_probability=0.3)
PLACES = [
    ("fake", "attention", "here"),
    ("hf", "llama", "here"),
    ("mlx", "llama", "here"),
    pytest.param(("hf", "lfm2", "here"), marks=pytest.mark.slow),
    pytest.param(("mlx", "lfm2", "here"), marks=pytest.mark.slow),
    ("fake", "attention", "piped"),
    pytest.param(("hf", "gemma3", "piped"), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=PLACES, ids="-".join)
def case(request: pytest.FixtureRequest) -> Iterator[Subject]:
    backend, name, place = request.param
    with (subject if place == "here" else piped)(backend, name) as made:
        yield made


def stored(snapshot: Snapshot) -> Snapshot:
    """The snapshot after a round trip through JSON."""
    back = Snapshot.from_mapping(json.loads(json.dumps(snapshot.to_mapping())))
    assert back == snapshot
    return back


def said(session: Session, count: int | None, *, start: Callable[[], Iterator[Any]]) -> list[Any]:
    """Records of a decode that is closed after `count`."""
    found = []
    stream = start()
    for record in stream:
        found.append(record)
        if len(found) == count:
            break
    stream.close()  # type: ignore[attr-defined]  # a generator
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [SamplingOptions(temperature=0.0), WARM], ids=["greedy", "sampled"])
def test_an_answer_interrupted_at_any_token_continues_identically(case: Subject, sampling: SamplingOptions) -> None:
    options = GenerationOptions(max_tokens=12, sampling=sampling, ignore_eos=True, top_k=3, seed=5)
    prompt = case.ids(7, 23)
    with case.model.open_session() as session:
        session.ensure_prefix_sync(prompt)
        whole = list(session.decode_sync(options))
    for cut in range(1, 12):
        with case.model.open_session() as session:
            session.ensure_prefix_sync(prompt)
            first = said(session, cut, start=lambda session=session: session.decode_sync(options))  # type: ignore[misc]  # bound now
            snapshot = stored(session.snapshot())
        case.model.clear_cache()
        with case.model.resume(snapshot) as again:
            assert again.ids == [*prompt, *(r.token_id for r in first)]
            rest = list(again.go_on_sync())
            assert [r.token_id for r in (*first, *rest)] == [r.token_id for r in whole]
            assert rest[-1].finish_reason == whole[-1].finish_reason == "length"
            assert "".join(r.text for r in (*first, *rest)) == "".join(r.text for r in whole)
            assert list(again.go_on_sync()) == []
            kinds = [(s.kind, s.start, s.end) for s in again.explain_context().segments]
            assert kinds == [("prefix", 0, 23), ("generated", 23, 35)]


@pytest.mark.slow
def test_a_json_answer_interrupted_at_each_token_continues_identically(case: Subject) -> None:
    grammar = Grammar.json_schema({**SCHEMA, "x-guidance": {"whitespace_flexible": False}})
    options = GenerationOptions(max_tokens=60, sampling=SamplingOptions(temperature=1.5), grammar=grammar, seed=3)
    prompt = case.ids(8, 9)
    with case.model.open_session() as session:
        session.ensure_prefix_sync(prompt)
        whole = list(session.decode_sync(options))
    answer = b"".join(r.token_bytes for r in whole if r.finish_reason != "eos")
    assert json.loads(answer)["name"] in ("rain", "süß")
    for cut in range(1, len(whole) + 1):
        with case.model.open_session() as session:
            session.ensure_prefix_sync(prompt)
            first = said(session, cut, start=lambda session=session: session.decode_sync(options))  # type: ignore[misc]  # bound now
            snapshot = stored(session.snapshot())
        with case.model.resume(snapshot) as again:
            rest = list(again.go_on_sync())
            assert [r.token_id for r in (*first, *rest)] == [r.token_id for r in whole]
            assert "".join(r.text for r in (*first, *rest)) == "".join(r.text for r in whole)
            assert (rest or first)[-1].finish_reason == whole[-1].finish_reason


def test_a_snapshot_resumes_through_the_asynchronous_interface(case: Subject) -> None:
    async def play() -> None:
        async with case.model.open_session() as session:
            await session.ensure_prefix(case.ids(1, 10))
            whole = [r.token_id async for r in session.decode(greedy(6))]
            await session.truncate(13)
            snapshot = stored(session.snapshot())
        async with case.model.resume(snapshot) as again:
            assert [r.token_id async for r in again.go_on()] == whole[3:]

    asyncio.run(play())


def test_a_resumed_session_continues_from_a_picked_token(case: Subject) -> None:
    with case.model.open_session() as session:
        session.ensure_prefix_sync(case.ids(1, 10))
        list(session.decode_sync(greedy(6)))
        session.truncate_sync(12)
        session.advance(9)
        with case.model.resume(stored(session.snapshot())) as again:
            rest = [r.token_id for r in again.go_on_sync()]
            assert rest == case.plain([*session.ids], greedy(3))


def test_a_session_without_an_unfinished_answer_has_nothing_to_continue(case: Subject) -> None:
    with case.model.open_session() as session:
        session.ensure_prefix_sync(case.ids(1, 10))
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="no answer to go on with"):
                list(session.go_on_sync())
            list(session.decode_sync(greedy(2)))
            session.prefill_suffix_sync([1, 2])  # tokens after the answer


def test_a_resumed_session_keeps_its_configuration_and_segments(case: Subject) -> None:
    config = SessionConfig(top_k=None, limit=40, options=GenerationOptions(max_tokens=3))
    with case.model.open_session(config) as session:
        session.ensure_prefix_sync(case.ids(1, 10), label="system")
        session.prefill_suffix_sync([1, 2], label="question")
        before = session.explain_context()
        snapshot = stored(session.snapshot())
    with case.model.resume(snapshot) as again:
        assert again.explain_context() == before
        assert (again.limit, again.config.top_k, again.config.options) == (40, None, config.options)
        case.check(again.logprobs_sync(), again.ids)
        status = again.ensure_prefix_sync(case.ids(1, 10))
        assert (status.dropped, status.prefix) == (2, 10)


def test_an_empty_session_is_resumed(case: Subject) -> None:
    with case.model.open_session() as session, case.model.resume(stored(session.snapshot())) as again:
        assert again.ids == []


def test_each_difference_from_the_snapshot_is_named(case: Subject) -> None:
    with case.model.open_session() as session:
        session.ensure_prefix_sync(case.ids(1, 10))
        snapshot = session.snapshot()
    changed = replace(snapshot.manifest, model="0" * 64, template="1" * 64, bos="no")
    with pytest.raises(SnapshotMismatchError) as caught:
        case.model.resume(replace(snapshot, manifest=changed))
    for words in ("model:", "template:", "add_bos:", "resume_text"):
        assert words in str(caught.value)
    stack = replace(snapshot.manifest, adapters=(AdapterOf("poet", 1.0, "2" * 64),))
    with pytest.raises(SnapshotMismatchError, match="poet"):
        case.model.resume(replace(snapshot, manifest=stack))
    long = replace(snapshot, ids=(1,) * (case.model.info.context_length + 1))
    with pytest.raises(ContextOverflowError):
        case.model.resume(long)


def test_the_text_of_a_snapshot_can_be_resumed_on_any_model() -> None:
    with load(tiny_path("llama"), "hf", threads=1) as model, load(tiny_path("gemma3"), "hf", threads=1) as other:
        with model.open_session() as session:
            session.ensure_prefix_sync("Es regnet in Köln 🌧.")
            snapshot = stored(session.snapshot())
        with pytest.raises(SnapshotMismatchError):
            other.resume(snapshot)
        with other.resume_text_sync(snapshot) as again:
            assert again.ids == other.tokenize("Es regnet in Köln 🌧.")
            assert len(again.logprobs_sync())


DAMAGE: list[tuple[Callable[[dict[str, Any]], Any], str]] = [
    (lambda m: [], "a mapping"),
    (lambda m: m | {"version": 2}, "version 2"),
    (lambda m: m | {"version": True}, "version is True"),
    (lambda m: m | {"surprise": 1}, "surprise"),
    (lambda m: {k: v for k, v in m.items() if k != "ids"}, "ids"),
    (lambda m: m | {"ids": [*m["ids"][1:], 5]}, "checksum"),
    (lambda m: m | {"ids": "abc"}, "whole numbers"),
    (lambda m: m | {"ids": [1 << 80]}, "whole numbers"),
    (lambda m: m | {"text": "%"}, "damaged"),
    (lambda m: m | {"marks": []}, "segments"),
    (lambda m: m | {"marks": [["wizard", "", 0]]}, "segments"),
    (lambda m: m | {"marks": [["prefix", "", 3]]}, "no mark"),
    (lambda m: m | {"marks": [["prefix", "", 0], ["prefix", "", 99]]}, "marks"),
    (lambda m: m | {"prefix": 11}, "prefix"),
    (lambda m: m | {"messages": [["user"]]}, "damaged"),
    (lambda m: m | {"manifest": {}}, "manifest"),
    (lambda m: m | {"options": {"temprature": 1}}, "temperature"),
    (lambda m: m | {"generation": {"start": 99, "options": {}, "finish": None}}, "start"),
    (lambda m: m | {"generation": {"start": 1}}, "generation"),
    (lambda m: m | {"blocks": ["zz"]}, "damaged"),
]


@pytest.mark.parametrize(("damage", "words"), DAMAGE, ids=[str(i) for i in range(len(DAMAGE))])
def test_a_damaged_snapshot_is_refused(damage: Callable[[dict[str, Any]], Any], words: str) -> None:
    with subject("fake", "attention") as made, made.model.open_session() as session:
        session.ensure_prefix_sync(made.ids(1, 10))
        mapping = json.loads(json.dumps(session.snapshot().to_mapping()))
    with pytest.raises(SnapshotFormatError, match=words):
        Snapshot.from_mapping(damage(mapping))


def test_options_of_every_kind_survive_the_round_trip() -> None:
    sampling = SamplingOptions(temperature=0.5, logit_bias={3: -1.5}, banned_tokens=(4, 5), dry_breakers=("x", 7))
    long = "b" * 70_000  # more than a request may have now: stored snapshots of an earlier version are read all the same
    options = GenerationOptions(sampling=sampling, stop=("a", long), seed=(1 << 63) + 1, grammar=Grammar.regex("a+b"), top_k=4)
    with subject("fake", "attention") as made, made.model.open_session(SessionConfig(options=options)) as session:
        assert stored(session.snapshot()).options == options
