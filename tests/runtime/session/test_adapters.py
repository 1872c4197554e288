"""A session keeps the adapter stack that it was opened under."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from runtime import (
    AdapterError,
    GenerationOptions,
    InvalidRequestError,
    LanguageModel,
    ManifestMismatchError,
    SamplingOptions,
    SessionConfig,
    load,
)
from tests.fakes import settled
from tests.runtime.adapters.makers import adapters_of
from tests.runtime.backends.reference import TOLERANCE
from tests.runtime.session.subjects import greedy
from tests.tiny_models import tiny_path

IDS = [5, 17, 300, 42, 8, 120, 7]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    a, b = adapters_of("llama", Path(tmp_path_factory.mktemp("adapters")))
    with load(tiny_path("llama"), backend="hf", threads=1) as loaded:
        for name, folder in (("a", a), ("b", b)):
            loaded.load_adapter(loaded.add_adapter(folder, name))
        yield loaded
        assert settled(loaded)[1].leases == 0


def test_sessions_with_different_adapter_stacks_coexist(model: LanguageModel) -> None:
    stacks = ((), ("a",), (("a", 0.5), "b"))
    sessions = [model.open_session(SessionConfig(adapters=stack)) for stack in stacks]
    assert len({session.manifest.digest for session in sessions}) == 3
    for session in sessions:
        session.ensure_prefix_sync(IDS[:4])
        session.prefill_suffix_sync(IDS[4:])
    # even when the model's own stack changes
    model.push_lora("b")
    try:
        before = settled(model)[0].tokens_computed
        rows = [session.logprobs_sync() for session in sessions]
        for session in sessions:
            session.truncate_sync(5)
            assert session.ensure_prefix_sync(IDS).prefilled == 0
        assert settled(model)[0].tokens_computed == before  # and each finds its own KV
        for row, stack in zip(rows, stacks, strict=True):
            np.testing.assert_allclose(row, model.next_token_logprobs_uncached(IDS, adapters=stack), atol=TOLERANCE, rtol=0)
        drawn = [[r.token_id for r in session.decode_sync(greedy(4))] for session in sessions]
        options = [
            GenerationOptions(max_tokens=4, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, adapters=s)
            for s in stacks
        ]
        assert drawn == [[r.token_id for r in model.generate_sync(IDS, each)] for each in options]
    finally:
        model.clear_loras()
    for session in sessions:
        session.close()


def test_changing_the_models_stack_under_a_session_without_its_own_is_a_mismatch(model: LanguageModel) -> None:
    with model.open_session() as session:
        session.ensure_prefix_sync(IDS)
        model.push_lora("a", 0.5)
        try:
            before = settled(model)[0].tokens_computed
            for act in (lambda: session.prefill_suffix_sync([1]), session.logprobs_sync, lambda: list(session.decode_sync())):
                with pytest.raises(ManifestMismatchError, match=r"adapters: none, a_lora x 0.5"):
                    act()
            assert (settled(model)[0].tokens_computed, session.ids) == (before, IDS)
        finally:
            model.clear_loras()
        session.prefill_suffix_sync([1])  # the stack is as before


def test_an_unloaded_adapter_of_a_session_is_named(model: LanguageModel) -> None:
    with model.open_session(SessionConfig(adapters=("b",))) as session:
        session.ensure_prefix_sync(IDS)
        with pytest.raises(InvalidRequestError, match="the session runs under the adapters"):
            list(session.decode_sync(GenerationOptions(adapters=("a",))))
        model.unload_adapter("b")
        try:
            with pytest.raises(AdapterError, match="no adapter 'b' is loaded"):
                session.logprobs_sync()
        finally:
            model.load_adapter("b")
        assert len(session.logprobs_sync()) == model.info.vocab_size


def test_the_options_of_a_session_apply_where_a_call_sets_none(model: LanguageModel) -> None:
    own = GenerationOptions(max_tokens=3, seed=5, sampling=SamplingOptions(temperature=1.5), ignore_eos=True)
    with model.open_session(SessionConfig(options=own)) as session:
        session.ensure_prefix_sync(IDS)
        first = [r.token_id for r in session.decode_sync()]
        assert first == [r.token_id for r in model.generate_sync(IDS, own)]
        session.truncate_sync(len(IDS))
        longer = [r.token_id for r in session.decode_sync(GenerationOptions(max_tokens=5))]
        assert (len(longer), longer[:3]) == (5, first)
