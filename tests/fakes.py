"""The `fake` backend as a model, its expected numbers, and gates that stop it in the middle of a forward."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime import GenerationOptions, LanguageModel, Priority, load
from runtime.aio import FutureLike
from runtime.backends.fake import Behaviour, FakeBackend
from runtime.engine.owner import Engine
from runtime.info import CacheReport, Metrics
from runtime.options.generation import resolve_options
from runtime.options.load import LoadOptions
from runtime.records import Float32
from runtime.sampling.chain import make_sampler
from runtime.scheduler.jobs import GenerateJob, QueryJob, RowCollector
from runtime.transport.local import LocalTransport

KINDS = ("attention", "recurrent", "overlapping")
PATIENCE = 30_000  # polls, a millisecond apart
TOLERANCE = 1e-5  # nats; the fake computes in float64


@contextmanager
def fake_model(behaviour: Behaviour | None = None, **options: Any) -> Iterator[LanguageModel]:
    """A model on the fake backend, closed at the end; no lease may be left."""
    with load((behaviour or Behaviour(), None), backend="fake", **options) as model:
        yield model
        assert settled(model)[1].leases == 0
        assert settled(model)[1].leased_bytes == 0


def local(model: LanguageModel) -> LocalTransport:
    """The transport of a model of this process."""
    transport = model.transport
    assert isinstance(transport, LocalTransport)
    return transport


def engine_of(model: LanguageModel) -> Engine:
    """The owner thread of a model of this process."""
    return local(model).engine


def query_job(model: LanguageModel, ids: Sequence[int], waiter: FutureLike) -> QueryJob:
    """The job that the model would make for a query, for a test that queues it itself; answered as ``(1, vocab)``."""
    path = np.array(ids, np.int32)
    namespace, before = local(model).operations.route(path, None)
    return QueryJob(path, namespace, before=before, waiters=[(RowCollector(waiter, 1), 0)])


def generate_job(model: LanguageModel, ids: Sequence[int], options: GenerationOptions) -> GenerateJob:
    """The job that the model would make for a generation, for a test that queues it itself."""
    path = np.array(ids, np.int32)
    namespace, before = local(model).operations.route(path, None)
    chosen = resolve_options(options).options
    sampler = make_sampler(chosen.sampling, chosen.seed or 0, chosen.branch)
    return GenerateJob(path, namespace, Priority.CHAT, before=before, options=chosen, sampler=sampler)


def settled(model: LanguageModel) -> tuple[Metrics, CacheReport]:
    """The metrics and the cache report once all cancelled and finished requests are removed."""
    for _ in range(2):  # the first step drops cancelled requests, the second follows its report
        model.prefix_match([1])
    return model.metrics(), model.cache_report()


def until(true: Callable[[], object]) -> None:
    """Waits in this thread until a condition holds."""
    for _ in range(PATIENCE):
        if true():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came")


async def settled_report(model: LanguageModel) -> CacheReport:
    """The metrics of any model, awaited on the caller's loop."""
    for _ in range(2):
        await model.prefix_match_async([1])
    return model.cache_report()


def wait_for_close(model: LanguageModel) -> None:
    """Waits until its close has begun: from then on it answers no request."""
    until(lambda: engine_of(model).ended)


def wait_for_jobs(model: LanguageModel, n: int) -> None:
    """Waits until `n` jobs are queued at a model that is stopped in the middle of a forward."""
    until(lambda: len(engine_of(model).inbox) == n)


@functools.cache
def _alone(kind: str) -> FakeBackend:
    return FakeBackend(LoadOptions(), Behaviour(recurrent=kind == "recurrent", overlaps=kind == "overlapping"))


@functools.lru_cache(maxsize=4096)
def remembered_reference(ids: tuple[int, ...], kind: str) -> Float32:
    """`reference` of a tuple of ids."""
    wide = _alone(kind).logits_uncached(ids).astype(np.float64)
    wide -= wide.max()
    logprobs: Float32 = (wide - np.log(np.exp(wide).sum())).astype(np.float32)
    return logprobs


def reference(ids: Sequence[int] | npt.NDArray[Any], kind: str = "attention") -> Float32:
    """``(vocab,)`` log-probabilities after `ids`, by a fresh fake backend."""
    return remembered_reference(tuple(int(i) for i in ids), kind)


def assert_right(got: Float32, ids: Sequence[int] | npt.NDArray[Any], kind: str = "attention") -> None:
    """Asserts that the model's answer for `ids` equals that of a fresh run."""
    np.testing.assert_allclose(got, reference(ids, kind), atol=TOLERANCE, rtol=0)


def some_ids(seed: int, n: int, vocab: int = 256) -> list[int]:
    """Token ids, the same for the same seed."""
    return [int(i) for i in np.random.default_rng(seed).integers(0, vocab, n)]


def around_begins(backend: Any, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Passes the first half of every forward, prepared ones too, through `wrap`; one computed at once passes as a whole."""
    prepare = backend.prepare

    def prepared(*arguments: Any) -> Any:
        begin = prepare(*arguments)
        return None if begin is None else wrap(begin)

    backend.compute, backend.begin, backend.prepare = wrap(backend.compute), wrap(backend.begin), prepared


class Gate:
    """Stops a model in the middle of a forward: `before_forward=gate`. Open until `shut`."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._pass = 0  # forwards that pass although the gate is shut
        self.reached = threading.Event()  # a forward waits at the gate

    def __call__(self, _: object) -> None:
        if self._open.is_set():
            return
        if self._pass:
            self._pass -= 1
            return
        self.reached.set()
        assert self._open.wait(30)

    def shut(self, *, after: int = 0) -> None:
        """Stops the next forward, or the one after `after` more."""
        self.reached.clear()
        self._pass = after
        self._open.clear()

    def open(self) -> None:
        """Releases the waiting forward."""
        self._open.set()


class Turnstile:
    """A gate that releases forwards one by one once it is shut."""

    def __init__(self) -> None:
        self._free = threading.Event()
        self._free.set()
        self._passes, self._arrivals = threading.Semaphore(0), threading.Semaphore(0)

    def arrive(self) -> None:
        """Called when a forward is about to begin; waits while the turnstile is shut."""
        if not self._free.is_set():
            self._arrivals.release()
            assert self._passes.acquire(timeout=60)

    def stand_before(self, model: LanguageModel) -> None:
        """Makes every forward of this model arrive here, on any backend."""

        def wrap(begin: Callable[..., Any]) -> Callable[..., Any]:
            def held(*arguments: Any, **named: Any) -> Any:
                self.arrive()
                return begin(*arguments, **named)

            return held

        around_begins(engine_of(model).backend, wrap)

    def shut(self) -> None:
        """Stops the forwards that follow."""
        self._free.clear()

    def wait(self) -> None:
        """Waits until a forward has reached the gate."""
        assert self._arrivals.acquire(timeout=60)

    def let_through(self) -> None:
        """Releases the forward that waits."""
        self._passes.release()

    def open(self) -> None:
        """Opens the gate for good."""
        self._free.set()
        self._passes.release()
