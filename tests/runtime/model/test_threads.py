"""One thread owns every array: the backend's arrays are made, used and freed there alone."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.backends.registry import register_backend, resolve_backend, unregister_backend
from runtime.options.load import LoadOptions
from tests.fakes import some_ids
from tests.tiny_models import tiny_path

Callers = dict[str, set[int]]  # operation -> the threads that called it
BROKEN = [7, 7, 7]  # a forward of exactly these tokens fails
MAKERS = ("open_pack", "take", "restore")
RECURRENT = ("lfm2", "falcon_h1", "mamba")  # their segments are copied one by one


class Held:
    """A pack or payload of the backend that records the thread on which it is freed."""

    def __init__(self, inner: Any, callers: Callers, end: str) -> None:
        self.inner, self._callers, self._end = inner, callers, end

    def __del__(self) -> None:
        self._callers.setdefault(self._end, set()).add(threading.get_ident())


class Watched:
    """A backend that records which threads call it and free its arrays. `info` is plain data, for any thread."""

    def __init__(self, backend: Any, callers: Callers) -> None:
        self.info = backend.info
        self._backend, self._callers = backend, callers

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._backend, name)
        if not callable(method):
            return method

        def call(*arguments: Any, **named: Any) -> Any:
            self._callers.setdefault(name, set()).add(threading.get_ident())
            if name in ("compute", "begin", "prepare"):
                parts = [replace(part, pack=part.pack.inner) for part in arguments[0]]
                if name == "compute" and parts[0].tokens.tolist() == BROKEN:
                    raise ZeroDivisionError("broken kernel")
                arguments = (parts, *arguments[1:])
            answer = method(*(a.inner if isinstance(a, Held) else a for a in arguments), **named)
            if name in ("split", "take_many"):
                return type(answer)(Held(part, self._callers, "payload freed") for part in answer)
            if name == "begin":
                return self._noted("fetch", answer)
            if name == "prepare" and answer is not None:
                return lambda tokens: self._begun(answer, tokens)
            if name in MAKERS:
                return Held(answer, self._callers, "pack freed" if name == "open_pack" else "payload freed")
            return answer

        return call

    def _begun(self, rest: Callable[[Any], Any], tokens: Any) -> Any:
        """Begins a prepared forward."""
        return self._noted("fetch", self._noted("begin", lambda: rest(tokens))())

    def _noted(self, name: str, act: Callable[[], Any]) -> Callable[[], Any]:
        """Wraps a later part of a call so that its thread is recorded."""

        def call() -> Any:
            self._callers.setdefault(name, set()).add(threading.get_ident())
            return act()

        return call


def work(model: LanguageModel) -> None:
    """Requests of every kind, from several threads and loops, with little memory, some of them cancelled."""

    async def main() -> None:
        prompts = [some_ids(seed, 20) for seed in range(6)]
        doomed = [asyncio.ensure_future(model.sample(p, 60, [])) for p in prompts[:3]]

        async def cancel() -> None:
            await model.next_token_logprobs(prompts[3])
            assert all(task.cancel() for task in doomed)  # none had ended

        await asyncio.gather(
            cancel(),
            model.batch_next_token_logprobs(prompts),
            model.batch_sample(prompts, 40, []),
            model.score(prompts[0]),
            model.score([*prompts[0][:7], *prompts[1]]),
            model.next_token_logprobs_uncached_async(prompts[1]),
        )
        said = 0
        async for _ in model.generate(prompts[0]):
            said += 1
            if said == 4:
                break  # abandoned
        with pytest.raises(ZeroDivisionError):
            await model.next_token_logprobs(BROKEN)

    asyncio.run(main())
    threads = [threading.Thread(target=model.next_token_logprobs_sync, args=(some_ids(s, 9),)) for s in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.isfinite(model.next_token_logprobs_uncached([1])).all()
    model.clear_kv_cache()
    assert model.prefix_match([1, 2]).tokens == 0
    model.next_token_logprobs_sync(some_ids(1, 30))
    model.next_token_logprobs_sync([*some_ids(1, 15), 3])
    model.reset_async_queries()
    model.clear_cache()
    model.cache_report()
    model.next_token_logprobs_sync(some_ids(2, 30))
    asyncio.run(model.sample(some_ids(3, 10), 8, []))  # certainly alone: above, one may always run beside another
    for seed in range(100, 160):
        model.next_token_logprobs_sync(some_ids(seed, 60))
    assert model.metrics().kv_evicted_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "architecture"),
    [
        *((name, "llama") for name in ("fake", "overlapping")),
        *(("hf", architecture) for architecture in ("llama", "lfm2", "falcon_h1")),
        *(("mlx", architecture) for architecture in ("gemma3", "mamba")),
    ],
)
def test_arrays_are_made_used_and_freed_by_one_thread_alone(name: str, architecture: str) -> None:
    callers: Callers = {}

    def watched(source: Any, options: LoadOptions) -> Any:
        callers["load"] = {threading.get_ident()}
        if name in ("hf", "mlx"):
            return Watched(resolve_backend(name)(source, options), callers)
        return Watched(resolve_backend("fake")((Behaviour(overlaps=name == "overlapping"), None), options), callers)

    register_backend("watched", watched)
    try:
        with load(tiny_path(architecture), backend="watched", kv_cache_bytes=700_000, prefill_chunk_tokens=16) as model:
            work(model)
        gc.collect()
    finally:
        unregister_backend("watched")
    wanted = {"load", "open_pack", "compute", "close", "logits_uncached", "unload"}
    copies = {*MAKERS, "payload freed"} if architecture in RECURRENT else set()  # otherwise the trie refers to packs
    assert wanted | copies <= {*callers, "restore"}
    overlaps = name in ("overlapping", "mlx") and architecture not in RECURRENT
    assert ("prepare" in callers) == ("begin" in callers) == ("fetch" in callers) == overlaps
    del callers["pack freed"]  # an empty object: its arrays were freed by `close`
    (owner,) = callers["load"]
    assert owner != threading.get_ident()
    assert callers == {what: {owner} for what in callers}
