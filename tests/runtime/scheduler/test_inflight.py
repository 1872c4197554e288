"""Forwards that were begun and not collected yet: placing other requests, or freeing memory, does not delay their streams."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.adapters.stacks import Tags
from runtime.backends.base import ROOT
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.errors import NonFiniteLogitsError
from runtime.options.generation import GenerationOptions, SamplingOptions
from runtime.options.load import LoadOptions
from runtime.records import TokenRun
from runtime.scheduler.kv.kv_budget import KvBudget
from runtime.scheduler.kv.workspace import PartialForward, Workspace, begin, forward
from tests.fakes import assert_right, engine_of, fake_model, generate_job, reference, settled, some_ids
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.runtime.model.trouble import audit, poison
from tests.tiny_models import tiny_path

GREEDY = GenerationOptions(max_tokens=12, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
TOKEN = 2 * 16 * 8  # bytes of one token's KV in the fake model


def begun() -> tuple[Workspace, list[int]]:
    """A workspace that holds [1, 2] and has begun [3], and the forwards that it has waited for."""
    waited: list[int] = []
    behaviour = Behaviour(overlaps=True, before_forward=lambda tokens: waited.append(len(tokens)))
    backend = FakeBackend(LoadOptions(), behaviour)
    workspace = Workspace(backend, Tags(backend.info.kv_fingerprint), KvBudget(backend, 1 << 30, enabled=True))
    workspace.paths.add(workspace.paths.add(ROOT, 1), 2)
    forward([PartialForward(workspace, [1, 2], [ROOT, 0], [])], workspace.backend.compute)
    workspace.paths.add(1, 3)
    begin([PartialForward(workspace, [3], [1], [0])])
    waited.clear()
    return workspace, waited


def test_looking_up_another_path_does_not_wait_for_a_begun_forward() -> None:
    workspace, waited = begun()
    for strange in ([9], [1, 9], [1, 2, 9], [1, 2]):
        assert len(workspace.trail(np.array(strange))) == len([t for t in strange if t != 9])
    assert waited == []
    # but a path that continues the begun token waits, for its forward may fail
    assert workspace.trail(np.array([1, 2, 3, 4])) == [0, 1, 2]
    assert waited == [1]
    logits = workspace.collect()
    assert isinstance(logits, np.ndarray)
    assert int(logits.argmax()) == int(reference([1, 2, 3]).argmax())


def test_a_begun_token_whose_forward_failed_is_not_found() -> None:
    workspace, _ = begun()
    backend: Any = workspace.backend
    backend.behaviour.raise_on = {3: ZeroDivisionError("broken kernel")}
    assert workspace.trail(np.array([1, 2, 3])) == [0, 1]
    assert workspace.collect() is None
    assert (workspace.size, workspace.held) == (2, 2)


def test_queries_placed_at_every_step_neither_lose_nor_repeat_nor_delay_a_token_of_a_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("runtime.scheduler.decode.rows.PACE_SECONDS", 0.0)  # every token is reported in its step
    # given streams in separate packs, and little more memory than they need
    prompts = [some_ids(seed, 20 + seed) for seed in range(3)]
    n = 40
    options = GenerationOptions(max_tokens=n, sampling=SamplingOptions(temperature=0.0), ignore_eos=True, top_k=0)
    with fake_model(Behaviour(overlaps=True), kv_cache_bytes=330 * TOKEN) as model:
        scheduler = engine_of(model).scheduler
        scheduler.cache.workspaces.crowd = 1
        steps: dict[int, list[int]] = {i: [] for i in range(3)}
        said: dict[int, list[int]] = {i: [] for i in range(3)}
        ended = [threading.Event() for _ in prompts]
        errors: list[BaseException | None] = []

        def chat(i: int) -> Any:
            job = generate_job(model, prompts[i], options)

            def on_run(run: TokenRun) -> None:
                said[i] += run.ids.tolist()
                steps[i] += [scheduler.steps] * len(run)

            def on_end(error: BaseException | None) -> None:
                errors.append(error)
                ended[i].set()

            job.on_run, job.on_end = on_run, on_end
            return job

        async def ask() -> None:
            """Queries unrelated texts, and continuations of the streams' text so far, until the streams have ended."""
            seed = 0
            while not all(event.is_set() for event in ended):
                seed += 1
                texts = [[*prompts[i], *said[i], 7][: 30 + seed % 50] for i in range(3)]
                texts += [some_ids(100 + seed, 12), [*prompts[seed % 3][:9], seed % 200]]
                for row, text in zip(await asyncio.gather(*map(model.next_token_logprobs, texts)), texts, strict=True):
                    assert_right(row, text)

        # when queries are placed beside them all the time
        engine_of(model).submit([chat(i) for i in range(3)])
        asyncio.run(ask())
        # then each has the same tokens as alone, each token once, and one in every step from its first on
        assert errors == [None] * 3
        for i, prompt in enumerate(prompts):
            path = list(prompt)
            for token in said[i]:
                assert token == int(reference(path).argmax())
                path.append(token)
            assert len(said[i]) == n
            assert steps[i] == list(range(steps[i][0], steps[i][0] + n))
        audit(model)


@pytest.mark.parametrize(
    ("backend", "name"),
    [("fake", "attention"), ("fake", "recurrent"), ("fake", "overlapping"), ("hf", "llama"), ("mlx", "llama")],
)
def test_nan_kv_of_a_forward_begun_for_a_cancelled_request_is_not_kept(
    backend: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("runtime.scheduler.decode.rows.PACE_SECONDS", 0.0)  # every token is reported in its step
    # given an answer that draws a token whose keys are NaN, and is cancelled once it has drawn it
    source: Any = (
        tiny_path(name)
        if backend != "fake"
        else (Behaviour(recurrent=name == "recurrent", overlaps=name == "overlapping"), None)
    )
    prompt = [5, 6, 7, 8]

    def right(ids: list[int]) -> Any:
        return reference(ids, name) if backend == "fake" else expected(name, ids)[-1]

    path = list(prompt)
    for _ in range(4):
        path.append(int(right(path).argmax()))
    bad = next(token for at, token in enumerate(path[5:], 5) if token not in path[:at])  # drawn second, or later
    with load(source, backend=backend) as model:
        engine_of(model).call(lambda: poison(model, bad, np.nan)).result()
        drop(model, prompt, bad)
        # when other queries run in the same pack, then they get their answers
        for more in ([], [20], [path[4]], [path[4], 21], [22, 23]):
            ids = [*prompt, *more]
            if bad not in ids:
                np.testing.assert_allclose(model.next_token_logprobs_sync(ids), right(ids), atol=TOLERANCE, rtol=0)
        # and NaN is still found on the path that has it
        with pytest.raises(NonFiniteLogitsError):
            model.next_token_logprobs_sync([*prompt, bad])
        audit(model)


def drop(model: LanguageModel, prompt: list[int], token: int) -> None:
    """Generates until `token` was drawn; in the step in which it is reported, the request is cancelled."""
    ended = threading.Event()
    job = generate_job(model, prompt, GREEDY)

    def on_run(run: TokenRun) -> None:
        job.cancelled = job.cancelled or token in run.ids.tolist()

    job.on_run, job.on_end = on_run, lambda _: ended.set()
    engine_of(model).submit([job])
    assert ended.wait(30)
    assert job.cancelled
    settled(model)
