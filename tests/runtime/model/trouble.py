"""Every backend with faults on demand, inside the model or in its answers, and shared helpers of the tests of bad input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime import LanguageModel, load
from runtime.backends.fake import Behaviour
from runtime.backends.registry import register_backend, resolve_backend, unregister_backend
from runtime.options.load import LoadOptions
from tests.fakes import engine_of, reference, settled
from tests.runtime.backends.reference import TOLERANCE, expected
from tests.tiny_models import tiny_path

CASES = (
    ("fake", "attention"),
    ("fake", "recurrent"),
    ("fake", "overlapping"),
    ("hf", "llama"),
    ("hf", "lfm2"),
    ("mlx", "llama"),
    ("mlx", "lfm2"),
)


class NativePanic(BaseException):
    """The panic of a native library: a BaseException that is no Exception."""


@dataclass(slots=True)
class Faults:
    """The faults by token. May be changed between two requests."""

    raise_on: Mapping[int, BaseException] = field(default_factory=dict)  # in the middle of the model, past its first layer
    bad_on: Mapping[int, float] = field(default_factory=dict)  # the value of one entry of the row's logits


class Trap:
    """A layer of a model that fails when it is armed."""

    def __init__(self, layer: Any, troubled: Troubled) -> None:
        self._layer, self._troubled = layer, troubled

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._troubled.spring()
        return self._layer(*arguments, **named)


class Troubled:
    """A backend whose model runs into `faults`: its earlier layers have written their keys and values by then."""

    def __init__(self, backend: Any, faults: Faults) -> None:
        self._backend, self._faults = backend, faults
        self._armed: BaseException | None = None
        if hasattr(backend, "behaviour"):
            backend.behaviour.before_forward = lambda _: self.spring()
        elif backend.info.backend == "mlx":
            layers = backend.model.layers
            layers[1] = Trap(layers[1], self)
        else:
            layers = backend.model.get_decoder().layers
            layers[1].register_forward_pre_hook(lambda *_: self.spring())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def spring(self) -> None:
        """Fails if a guilty token is among those that are computed."""
        if self._armed is not None:
            raise self._armed

    def forward(self, pack: Any, tokens: Any, parents: Any, want: Any, *rest: Any) -> tuple[Any, npt.NDArray[np.float32]]:
        """The backend's forward, with the faults."""
        self._arm(tokens)
        slots, logits = self._backend.forward(pack, tokens, parents, want, *rest)
        return slots, self._marred(tokens, want, logits)

    def hidden_states(self, tokens: Any, *rest: Any) -> Any:
        """The backend's own, without the fault of an earlier forward."""
        self._armed = None
        return self._backend.hidden_states(tokens, *rest)

    def extend(self, pack: Any, tokens: Any, *rest: Any) -> Any:
        """The same."""
        self._armed = None
        return self._backend.extend(pack, tokens, *rest)

    def compute(self, parts: Any, request: Any = None) -> npt.NDArray[np.float32]:
        """The same."""
        return self.begin(parts, request)()

    def begin(self, parts: Any, request: Any = None) -> Callable[[], npt.NDArray[np.float32]]:
        """The same in two halves; a layer fails when it is called, in whichever of them the library does that."""
        tokens = np.concatenate([part.tokens for part in parts])
        starts = np.cumsum([0, *(len(part.tokens) for part in parts[:-1])])
        want = np.concatenate([part.want + start for part, start in zip(parts, starts, strict=True)])
        return self._begun(tokens, want, lambda: self._backend.begin(parts, request))

    def _begun(
        self, tokens: Any, want: Any, begin: Callable[[], Callable[[], npt.NDArray[np.float32]]]
    ) -> Callable[[], npt.NDArray[np.float32]]:
        self._arm(tokens)
        fetch = begin()

        def waiting() -> npt.NDArray[np.float32]:
            self._arm(tokens)  # other forwards may have run meanwhile
            return self._marred(tokens, want, fetch())

        return waiting

    def prepare(self, parts: Any, request: Any = None) -> Callable[[Any], Callable[[], npt.NDArray[np.float32]]] | None:
        """A prepared forward begins with the same faults; its layers were called before the tokens were known."""
        self._armed = None
        prepared = self._backend.prepare(parts, request)
        if prepared is None:
            return None

        def begin(tokens: Any) -> Callable[[], npt.NDArray[np.float32]]:
            self.spring()
            begun: Callable[[], npt.NDArray[np.float32]] = prepared(tokens)
            return begun

        return lambda tokens: self._begun(tokens, np.arange(len(tokens)), lambda: begin(tokens))

    def _arm(self, tokens: Any) -> None:
        self._armed = next((self._faults.raise_on[t] for t in tokens.tolist() if t in self._faults.raise_on), None)

    def _marred(self, tokens: Any, want: Any, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        logits = logits.copy()
        for row, at in enumerate(want.tolist()):
            if (bad := self._faults.bad_on.get(int(tokens[at]))) is not None:
                logits[row, 5] = bad
        return logits


@dataclass(frozen=True, slots=True)
class Case:
    """A loaded model with its faults and its right answers."""

    model: LanguageModel
    faults: Faults
    name: str
    toy: bool

    @property
    def guilty(self) -> int:
        """A token that `ids` never gives."""
        return 258 if self.toy else 999

    def ids(self, seed: int, n: int) -> list[int]:
        """Tokens other than `guilty`, the same for the same seed."""
        return [int(i) for i in np.random.default_rng(seed).integers(0, 250, n)]

    def right(self, ids: Sequence[int]) -> npt.NDArray[np.float32]:
        """``(vocab,)`` log-probabilities after `ids`, computed alone and without a cache."""
        return reference(ids, self.name) if self.toy else expected(self.name, ids)[-1]

    def check(self, got: Any, ids: Sequence[int]) -> None:
        """Asserts that the answer for `ids` is right."""
        np.testing.assert_allclose(got, self.right(ids), atol=TOLERANCE, rtol=0)


@contextmanager
def troubled(backend: str, name: str, **options: Any) -> Iterator[Case]:
    """One of `CASES`, loaded; closed at the end."""
    faults, toy = Faults(), backend == "fake"

    def make(found: Any, given: LoadOptions) -> Any:
        behaviour = Behaviour(recurrent=name == "recurrent", overlaps=name == "overlapping")
        source = (behaviour, None) if toy else found
        return Troubled(resolve_backend(backend)(source, given), faults)

    register_backend("troubled", make)
    try:
        with load(tiny_path("llama" if toy else name), backend="troubled", **options) as model:
            yield Case(model, faults, name, toy)
    finally:
        unregister_backend("troubled")


class Embedding:
    """An mlx embedding with one row replaced by a value; the head that shares its weights is unchanged."""

    def __init__(self, inner: Any, token: int, value: float) -> None:
        self._inner, self._token, self._value = inner, token, value

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __call__(self, ids: Any) -> Any:
        import mlx.core as mx

        return mx.where((ids == self._token)[..., None], self._value, self._inner(ids))


def poison(model: LanguageModel, token: int, value: float) -> None:
    """From now on the embedding of `token` is `value`; owner thread."""
    backend: Any = engine_of(model).backend
    if backend.info.backend == "mlx":
        decoder = backend.model.model
        decoder.embed_tokens = Embedding(decoder.embed_tokens, token, value)
    elif backend.info.backend == "fake":
        backend.embeddings[token] = value
    else:
        embedding = backend.model.get_input_embeddings()
        embedding.register_forward_hook(lambda _, ids, out: out.masked_fill((ids[0] == token)[..., None], value))


def audit(model: LanguageModel) -> None:
    """Asserts that nothing is leased or active, and that the bytes counted equal those of the payloads and scores.

    Evicts everything on the way.
    """
    metrics, report = settled(model)
    assert (report.leases, report.leased_bytes, metrics.requests_active) == (0, 0, 0)

    def look() -> None:
        cache = engine_of(model).scheduler.cache
        trie = cache.trie
        assert all(workspace.users == 0 for workspace in cache.workspaces.open)
        nodes = list(trie.nodes())
        assert [node.pins for node in nodes] == [0] * len(nodes)
        weights = [
            cache.kv_budget.payloads.weigh(node.payload).nbytes + (node.scores.nbytes if node.scores else 0) for node in nodes
        ]
        assert [node.nbytes for node in nodes] == weights
        assert trie.leased_bytes + trie.evictable_bytes == trie.bytes == sum(weights)
        assert trie.bytes <= cache.kv_budget.bytes <= cache.kv_budget.budget
        assert trie.evict(1 << 60) == sum(weights)  # all evictable bytes can be evicted
        assert (trie.bytes, trie.leased_bytes) == (0, 0)

    engine_of(model).call(look).result()
