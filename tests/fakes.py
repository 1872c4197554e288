"""What tests share: the `fake` backend as a model, its numbers worked out alone, and ways to hold it still."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.backends.fake import Behaviour, FakeBackend
from runtime.info import CacheReport, Metrics
from runtime.language_model import LanguageModel
from runtime.model import LocalModel, load
from runtime.options import LoadOptions
from runtime.records import Float32

KINDS = ("attention", "recurrent", "overlapping")
PATIENCE = 30_000  # looks, a millisecond apart
TOLERANCE = 1e-5  # nats; the fake computes in float64


@contextmanager
def fake_model(behaviour: Behaviour | None = None, **options: Any) -> Iterator[LocalModel]:
    """A model on the fake backend, closed at the end; nothing of it may be left leased."""
    with load((behaviour or Behaviour(), None), backend="fake", **options) as model:
        yield model
        assert settled(model)[1].leases == 0
        assert settled(model)[1].leased_bytes == 0


def settled(model: LocalModel) -> tuple[Metrics, CacheReport]:
    """The numbers once everything that was cancelled or finished is out of the way."""
    for _ in range(2):  # the first step drops what was cancelled, the second comes after its report
        model.prefix_match([1])
    return model.metrics(), model.cache_report()


def until(true: Callable[[], object]) -> None:
    """Waits, in this thread, for something that comes by itself."""
    for _ in range(PATIENCE):
        if true():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came")


async def settled_report(model: LanguageModel) -> CacheReport:
    """The same of any model, on its caller's loop: what it holds."""
    for _ in range(2):
        await model.prefix_match_async([1])
    return model.cache_report()


def wait_for_close(model: LocalModel) -> None:
    """Until somebody has begun to close it: from then on nobody is answered any more."""
    until(lambda: model._engine._closing)


def wait_for_jobs(model: LocalModel, n: int) -> None:
    """Until so many have been handed over to a model that is held in the middle of a forward."""
    until(lambda: len(model._engine._inbox) == n)


@functools.cache
def _alone(kind: str) -> FakeBackend:
    return FakeBackend(LoadOptions(), Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"))


@functools.lru_cache(maxsize=4096)
def _reference(ids: tuple[int, ...], kind: str) -> Float32:
    wide = _alone(kind).logits_uncached(ids).astype(np.float64)
    wide -= wide.max()
    logprobs: Float32 = (wide - np.log(np.exp(wide).sum())).astype(np.float32)
    return logprobs


def reference(ids: Sequence[int] | npt.NDArray[Any], kind: str = "attention") -> Float32:
    """``(vocab,)`` log-probabilities after `ids`, by a fake backend that has seen nothing else."""
    return _reference(tuple(int(i) for i in ids), kind)


def assert_right(got: Float32, ids: Sequence[int] | npt.NDArray[Any], kind: str = "attention") -> None:
    """The model's answer for `ids` is what a fresh run alone gives."""
    np.testing.assert_allclose(got, reference(ids, kind), atol=TOLERANCE, rtol=0)


def some_ids(seed: int, n: int, vocab: int = 256) -> list[int]:
    """Token ids, the same for the same seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab, n)]


def around_begins(backend: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Has the first half of every forward go through `wrap`, also of one that was prepared before its tokens were known."""
    prepare = backend.prepare

    def prepared(*arguments: Any) -> Any:
        begin = prepare(*arguments)
        return None if begin is None else wrap(begin)

    backend.begin, backend.prepare = wrap(backend.begin), prepared


class Gate:
    """Stops a model in the middle of a forward: `before_forward=gate`. Open until `shut`."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._pass = 0  # forwards that pass though it is shut
        self.reached = threading.Event()  # a forward stands before it

    def __call__(self, _: object) -> None:
        if self._open.is_set():
            return
        if self._pass:
            self._pass -= 1
            return
        self.reached.set()
        assert self._open.wait(30)

    def shut(self, *, after: int = 0) -> None:
        """The next forward waits, or the one after so many more."""
        self.reached.clear()
        self._pass = after
        self._open.clear()

    def open(self) -> None:
        """Lets it go on."""
        self._open.set()


class Turnstile:
    """Lets forwards through one by one, once it is shut."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._passes, self._arrivals = threading.Semaphore(0), threading.Semaphore(0)

    def arrive(self) -> None:
        """A forward is about to begin."""
        if not self._free.is_set():
            self._arrivals.release()
            assert self._passes.acquire(timeout=60)

    def stand_before(self, model: LocalModel) -> None:
        """Every forward of this model arrives here, on any backend."""

        def wrap(begin: Callable[..., Any]) -> Callable[..., Any]:
            def held(*arguments: Any) -> Any:
                self.arrive()
                return begin(*arguments)

            return held

        around_begins(model._engine.backend, wrap)

    def shut(self) -> None:
        """Those that come from now on wait."""
        self._free.clear()

    def wait(self) -> None:
        """Until a forward stands before it."""
        assert self._arrivals.acquire(timeout=60)

    def let_through(self) -> None:
        """The one that stands there."""
        self._passes.release()

    def open(self) -> None:
        """For good."""
        self._free.set()
        self._passes.release()
