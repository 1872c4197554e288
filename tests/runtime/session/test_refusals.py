"""What a session refuses: a typed error before any compute, and an unchanged session."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runtime import (
    AdapterError,
    AdapterOf,
    ContextOverflowError,
    GenerationOptions,
    InvalidRequestError,
    Manifest,
    ManifestMismatchError,
    SamplingOptions,
    Session,
    SessionBusyError,
    SessionClosedError,
    SessionConfig,
    UnsupportedFeatureError,
    load,
)
from tests.runtime.session.subjects import Subject, drawn, greedy, piped, subject
from tests.tiny_models import tiny_path


@pytest.fixture(scope="module", params=["here", "piped"])
def case(request: pytest.FixtureRequest) -> Iterator[Subject]:
    with (subject if request.param == "here" else piped)("fake", "attention", context_length=64) as made:
        yield made


@pytest.fixture
def session(case: Subject) -> Iterator[Session]:
    with case.model.open_session() as opened:
        opened.ensure_prefix_sync(case.ids(1, 20))
        yield opened


def everything(session: Session) -> list[Callable[[], Any]]:
    """Every entry point."""
    return [
        lambda: session.ensure_prefix_sync([1]),
        lambda: session.ensure_messages_sync([{"role": "user", "content": "hi"}]),
        lambda: session.prefill_suffix_sync([1]),
        lambda: session.prefill_sync([1]),
        lambda: session.joint_differs_sync("x"),
        lambda: session.logprobs_sync(),
        lambda: session.advance(1),
        lambda: list(session.decode_sync(greedy(1))),
        lambda: asyncio.run(drawn(session, greedy(1))),
        lambda: session.truncate_sync(1),
        lambda: session.fork(),
    ]


BAD: list[tuple[Callable[[Session], Any], str]] = [
    (lambda s: s.ensure_prefix_sync([]), "prefix: no tokens"),
    (lambda s: s.ensure_prefix_sync(""), "nothing to prefill"),
    (lambda s: s.ensure_prefix_sync([1, 259]), "token id 259 at position 1"),
    (lambda s: s.ensure_prefix_sync([1, -1]), "token id -1 at position 1"),
    (lambda s: s.ensure_prefix_sync([1.5]), "whole numbers"),  # type: ignore[list-item]  # the mistake under test
    (lambda s: s.ensure_prefix_sync([True]), "whole numbers"),
    (lambda s: s.ensure_prefix_sync(None), "flat sequence"),  # type: ignore[arg-type]  # the mistake under test
    (lambda s: s.prefill_suffix_sync(""), "nothing to prefill"),
    (lambda s: s.prefill_suffix_sync([]), "suffix: no tokens"),
    (lambda s: s.prefill_sync([1 << 40]), "outside the vocabulary"),
    (lambda s: s.advance(259), "advance: token id 259"),
    (lambda s: s.advance("a"), "whole numbers"),  # type: ignore[arg-type]  # the mistake under test
    (lambda s: s.advance(1, at=19), "meant for place 19, the session stands at 20"),
    (lambda s: s.advance(1, at=21), "meant for place 21"),
    (lambda s: s.truncate_sync(21), "21 tokens cannot stay of the 20"),
    (lambda s: s.truncate_sync(-1), "-1 tokens cannot stay"),
    (lambda s: s.truncate_sync(True), "True tokens cannot stay"),
    (lambda s: list(s.decode_sync("greedy")), "options is a GenerationOptions"),  # type: ignore[arg-type]  # the mistake
    (lambda s: list(s.decode_sync(GenerationOptions(max_tokens=0))), "max_tokens"),
    (lambda s: list(s.decode_sync(GenerationOptions(sampling=SamplingOptions(temperature=-1.0)))), "temperature"),
    (lambda s: s.ensure_messages_sync([]), "messages is a list"),
    (lambda s: s.ensure_messages_sync(5), "messages is a list"),  # type: ignore[arg-type]  # the mistake under test
    (lambda s: s.ensure_messages_sync([{"role": "king", "content": "x"}]), "role 'king'"),
    (lambda s: s.ensure_messages_sync([{"role": "user", "content": "x"}], tools=[5]), "list of mappings"),  # type: ignore[list-item]  # the mistake under test
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("act", "message"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_bad_input_changes_nothing(case: Subject, session: Session, act: Callable[[Session], Any], message: str) -> None:
    before, report = case.computed(), session.explain_context()
    with pytest.raises(InvalidRequestError, match=message):
        act(session)
    assert case.computed() == before
    assert session.explain_context() == report
    case.check(session.logprobs_sync(), session.ids)  # and it continues


def test_an_empty_session_can_neither_decode_nor_return_logprobs(case: Subject) -> None:
    with case.model.open_session() as empty:
        for act in (empty.logprobs_sync, lambda: list(empty.decode_sync())):
            with pytest.raises(InvalidRequestError, match="session is empty"):
                act()
        assert empty.explain_context().segments == ()


def test_a_context_overflow_is_named_at_each_stage(case: Subject, session: Session) -> None:
    before = case.computed()
    prefix = session.ids
    calls: list[tuple[Callable[[], Any], tuple[str, int, int, int]]] = [
        (lambda: session.ensure_prefix_sync([*prefix[:10], *[255] * 55]), ("prefix", 10, 55, 64)),
        (lambda: session.prefill_suffix_sync([1] * 45), ("suffix", 20, 45, 64)),
        (lambda: session.prefill_sync([1] * 45), ("prefill", 20, 45, 64)),
    ]
    for act, numbers in calls:
        with pytest.raises(ContextOverflowError) as refused:
            act()
        error = refused.value
        assert (error.stage, error.resident, error.additional, error.limit) == numbers
    assert (session.ids, case.computed()) == (prefix, before)
    # a full session takes no more tokens, but everything else works
    session.prefill_suffix_sync([1] * 44)
    assert session.explain_context().available == 0
    full = session.ids
    for stage, act in (("advance", lambda: session.advance(1)), ("decode", lambda: list(session.decode_sync()))):
        with pytest.raises(ContextOverflowError) as refused:
            act()
        error = refused.value
        assert (error.stage, error.resident, error.additional, error.limit) == (stage, 64, 1, 64)
    case.check(session.logprobs_sync(), full)


def test_a_decode_that_reaches_the_limit_finishes_with_context(case: Subject) -> None:
    for limit in (24, 64):
        with case.model.open_session(SessionConfig(limit=limit)) as session:
            session.ensure_prefix_sync(case.ids(1, 20))
            records = list(session.decode_sync(GenerationOptions(max_tokens=100, seed=1, ignore_eos=True)))
            assert [r.finish_reason for r in records] == [None] * (limit - 21) + ["context"]
            assert len(session) == limit
            assert session.ids[20:] == [r.token_id for r in records]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (SessionConfig(limit=0), "limit"),
        (SessionConfig(limit=65), "limit must lie within 1 token and the 64"),
        (SessionConfig(limit=True), "limit"),
        (SessionConfig(top_k=-1), "top_k"),
        (SessionConfig(manifest="x"), "manifest is a Manifest"),  # type: ignore[arg-type]  # the mistake under test
        (SessionConfig(adapters=("gone",)), "no adapter 'gone' is loaded"),
        (SessionConfig(adapters="gone"), "adapters is a sequence"),  # type: ignore[arg-type]  # the mistake under test
        (SessionConfig(options=5), "options is a GenerationOptions"),  # type: ignore[arg-type]  # the mistake under test
    ],
)
def test_an_invalid_configuration_opens_no_session(case: Subject, config: SessionConfig, message: str) -> None:
    with pytest.raises((InvalidRequestError, AdapterError), match=message):
        case.model.open_session(config)


def test_a_closed_session_refuses_every_call_and_still_reports_its_content(case: Subject, session: Session) -> None:
    ids = session.ids
    session.close()
    session.close()
    for act in everything(session):
        with pytest.raises(SessionClosedError, match="session is closed"):
            act()
    report = session.explain_context()
    assert (report.closed, report.resident, session.ids) == (True, 20, ids)


def test_concurrent_calls_on_one_session_are_refused_as_busy(case: Subject, session: Session) -> None:
    async def main() -> None:
        records = session.decode(greedy(5))
        await anext(records)
        for act in (
            session.prefill_suffix([1]),
            session.ensure_prefix([1]),
            session.logprobs(),
            session.truncate(1),
            anext(session.decode()),
        ):
            with pytest.raises(SessionBusyError, match="busy with decode"):
                await act
        with pytest.raises(SessionBusyError, match="advance: the session is busy with decode"):
            session.advance(1)
        with session.fork() as fork:  # has the tokens returned so far
            assert len(fork) == 21
            case.check(await fork.logprobs(), fork.ids)
        await records.aclose()
        both = await asyncio.gather(session.prefill([7]), session.prefill([8]), return_exceptions=True)
        assert [type(each).__name__ for each in both] == ["SuffixStatus", "SessionBusyError"]

    asyncio.run(main())
    assert (len(session), session.ids[-1]) == (22, 7)


def test_closing_ends_a_running_decode(case: Subject, session: Session) -> None:
    records = session.decode_sync(greedy(40))
    next(records)
    session.close()
    with pytest.raises(SessionClosedError):
        list(records)
    assert len(session) == 21


def test_a_different_manifest_is_refused_and_the_differences_are_named(case: Subject) -> None:
    with case.model.open_session() as session:
        mine = session.manifest
        stored = Manifest.from_mapping(session.manifest.to_mapping())
    assert stored == mine
    assert stored.digest == mine.digest
    with case.model.open_session(SessionConfig(manifest=stored)) as again:
        assert again.explain_context().manifest_digest == mine.digest
    changes: list[tuple[dict[str, Any], str]] = [
        ({"model": "0" * 64, "name": "other"}, r"model: other \(000000000000\), fake"),
        ({"tokenizer": "1" * 64}, "tokenizer: 111111111111, "),
        ({"template": ""}, "template: none, "),
        ({"bos": "yes"}, "add_bos: yes, model"),
        ({"runtime": (("backend", "fake"), ("dtype", "float16"))}, "dtype: float16, float32"),
        ({"adapters": (AdapterOf("tone_lora", 0.5, "2" * 64),)}, r"adapters: tone_lora x 0.5 \(222222222222\), none"),
    ]
    before = case.computed()
    for change, message in changes:
        other = replace(mine, **change)
        assert other.digest != mine.digest
        with pytest.raises(ManifestMismatchError, match=message):
            case.model.open_session(SessionConfig(manifest=other))
    assert replace(mine, name="renamed").digest == mine.digest
    assert case.computed() == before


@pytest.mark.parametrize("stored", [{}, {"name": 1}, {"runtime": 5}, [("a", "b")]])
def test_an_invalid_stored_manifest_is_refused(case: Subject, stored: Any) -> None:
    with pytest.raises(InvalidRequestError, match="no stored manifest"):
        Manifest.from_mapping(stored)
    with case.model.open_session() as session:
        whole = session.manifest.to_mapping()
    with pytest.raises(InvalidRequestError, match="no stored manifest"):
        Manifest.from_mapping({**whole, "runtime": 5})


def test_a_model_without_a_template_refuses_messages(tmp_path: Path) -> None:
    # given a model whose folder has no chat template
    folder = shutil.copytree(tiny_path("llama"), tmp_path / "plain")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": None}))
    # then its sessions take only text
    with load(folder, backend="hf", threads=1) as model, model.open_session() as session:
        with pytest.raises(UnsupportedFeatureError):
            session.ensure_messages_sync([{"role": "user", "content": "hi"}])
        session.ensure_prefix_sync("hi")
