"""mlx-lm's models as a backend. Results are evaluated before a call returns."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, TypeVar

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import make_prompt_cache

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends import facts
from runtime.backends.base import ROOT, Cost, PackTokens
from runtime.backends.mlx import payload as payloads
from runtime.backends.mlx.adapters import MlxAdapters
from runtime.backends.mlx.cache import Arrays, Blank, JointCache, MlxPack, SlotCache, attention_by_pack, make_caches
from runtime.backends.mlx.corrections import PROVEN, SelectRows, hidden_window
from runtime.backends.mlx.loading import (
    LoadedModel,
    check_fits,
    count_parameters,
    flat_parameters,
    full_config,
    load_model,
    random_copy,
)
from runtime.backends.mlx.logits import MlxLogits, as_on_host
from runtime.backends.mlx.masks import SlidingWindow, part_of, parts_of
from runtime.backends.mlx.payload import MlxPayload, codec_of
from runtime.backends.mlx.readings import Readings
from runtime.backends.packs.chains import Bucket, reach_of
from runtime.backends.packs.packed import PACK_BYTES, FirstForward, PackedBackend, as_ids, state_size
from runtime.backends.packs.tree import Bool, Float32, ForwardStep, Int64, State, consecutive, merged
from runtime.backends.selftest import (
    TOLERANCES,
    Copy,
    Measurements,
    UnprovenError,
    first_forward,
    kv_warning,
    prove,
    stream_warning,
)
from runtime.backends.small import VOCABULARY, small_copies
from runtime.backends.stored import Stored
from runtime.errors import ForkedError, MemoryBudgetError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.loading.model_folder import ModelFolder
from runtime.loading.rope import rope_tables, with_other_table
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.options.load import LoadOptions

_IMPORTED_BY = os.getpid()
LIBRARIES = ("mlx", "mlx-lm")
T = TypeVar("T")
APART_TOKENS = 40  # per layer of a model: from this many tokens on, its last layer costs more than another forward of one token
SLOW_SECONDS = 5.0  # a forward that takes longer is evaluated layer by layer, which shows its progress


def load(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> MlxBackend:
    """The registry's factory.

    Args:
        source: A checked model folder, or a ready (model, tokenizer) pair, whose model is not changed.
        options: `device`, `dtype`, `context_length`, `kv_dtype` and `kv_cache_bytes` are read here.

    Raises:
        ForkedError: The process was forked after MLX was loaded; without MLX's threads it would wait for ever.
        UnsupportedFeatureError: `attention="eager"`: MLX has one kernel. `offload="disk"`: its arrays live in memory.
    """
    if os.getpid() != _IMPORTED_BY:
        raise ForkedError(
            f"MLX was loaded by process {_IMPORTED_BY}, which this one was forked from, and does not work in a forked process; "
            'start the process by spawn instead: multiprocessing.get_context("spawn")'
        )
    _take_stream()
    ignored = check_fits(source, options)
    if options.attention == "eager":
        raise UnsupportedFeatureError("attention='eager' is not something MLX has; leave it on auto")
    try:
        loaded = load_model(source, options)
        try:
            backend = MlxBackend(loaded, options)
            backend.check(options, ignored)
            return backend
        except BaseException:
            loaded.limits.reset()
            raise
    except BaseException:
        _clear_streams()
        raise


class MlxBackend(PackedBackend[MlxPack]):
    """An mlx-lm model and its packs. Owner thread only: arrays belong to the thread that made them."""

    overlaps = True
    readings = frozenset(Readings.TABLE)
    layer_bytes = 2_200  # of Python objects for each layer of a pack; `PACK_BYTES` are those of the pack itself

    def __init__(self, loaded: LoadedModel, options: LoadOptions) -> None:
        self._loaded = loaded
        self._slow = True  # whether the running forward is evaluated layer by layer, as it may take long
        self._last = (1, float("inf"))  # tokens and seconds of the last forward
        self.model = loaded.model  # the library's; owner thread only
        self._window = hidden_window(loaded.config)
        self._adapters = MlxAdapters(self.model, loaded.config, loaded.dtype)
        self._select = SelectRows(self.model)
        self._readings = Readings(self.model, self._select)
        self._kv = facts.kv_format(options, _name(loaded.dtype))
        self._codec = codec_of(self._kv)
        self._work_dtype = loaded.dtype  # of the packs' buffers
        self._kinds: tuple[str, ...] = ()
        probe = self.open_pack()
        self.recurrent = bool(probe.recurrent)
        self.tree = not self.recurrent
        self.shares = self.recurrent
        flat = all(isinstance(cache, SlotCache) for cache in probe.caches)
        self.together = self.tree and flat and attention_by_pack(self.model)
        self._vocabulary = int(self.model(mx.zeros((1, 1), mx.int32)).shape[-1])
        on_gpu = mx.default_device() == mx.gpu  # on a processor numpy is nine times as fast
        self.on_device = self.together and on_gpu and as_on_host(self._vocabulary)
        self.info = self._describe(options, warnings=())

    def check(self, options: LoadOptions, ignored: tuple[str, ...] = ()) -> None:
        """Tests the numbers on a small copy, and adds warnings to `info`.

        Raises:
            ModelLoadError: They depend on how tokens are pushed, or are not finite.
        """
        loaded = self._loaded
        on_cpu = mx.default_device() == mx.cpu  # its kernels compute each row by itself; Metal's depend on the number of rows
        measured = Measurements.of(self.info, loaded.weights_digest if loaded.folder else None, LIBRARIES)
        self._last = 1, first_forward(self, measured).seconds
        self._check_tables(options)
        warnings = prove(self, self._copies(options)) + kv_warning(self, self._kv, measured)
        warnings += stream_warning(self, self._kv, even=on_cpu) + ignored + facts.rope_warning(loaded.config)
        if loaded.config.get("model_type") not in PROVEN:
            warnings += ("mlx-lm's version of this architecture was not compared with transformers; backend='hf' was",)
        if options.threads is not None:
            warnings += ("threads has no meaning with MLX",)
        self.info = self._describe(options, warnings)

    def _check_tables(self, options: LoadOptions) -> None:
        """Refuses a rope with several tables of numbers unless mlx-lm's class uses each of them.

        transformers chooses between them by the length of the text. A class that always uses the same table is consistent with
        itself, so that `prove` cannot find it. The loader makes tables equal where it knows their purpose (`for_mlx`).

        Raises:
            UnprovenError: Changing one table does not change a small copy's logits, neither at short nor at long texts.
        """
        config = full_config(self._loaded)
        if len(rope_tables(config)) < 2:
            return
        small = next(small_copies(config, self.info.context_length))
        chosen = replace(options, dtype="float32", kv_dtype="auto", context_length=small.context)
        text = np.random.default_rng(20_260_104).integers(0, VOCABULARY, small.context).tolist()

        def answers(config: Mapping[str, Any]) -> Float32:
            copy = self._copy(config, chosen)
            return np.stack([copy.logits_uncached(text[:n]) for n in (small.lengths[0] - 1, small.lengths[-1])])

        plain = answers(small.config)
        for table in rope_tables(small.config):
            if np.abs(answers(with_other_table(small.config, table)) - plain).max() < TOLERANCES["float32"]:
                raise UnprovenError(
                    f"{self.info.name}: its rope has several tables of numbers, and mlx-lm does not follow the one that begins "
                    f"with {', '.join(f'{number:g}' for number in table[:4])}; use backend='hf'"
                )

    def _copies(self, options: LoadOptions) -> Iterator[Copy]:
        """Small copies for `prove`, with plain weights in float32."""
        plain = replace(options, dtype="float32", kv_dtype="auto")
        for small in small_copies(full_config(self._loaded), self.info.context_length):
            chosen = replace(plain, context_length=small.context)
            key = type(self._loaded.model), repr(small), repr(chosen)
            yield Copy(partial(self._copy, small.config, chosen), small.lengths, key)

    def _copy(self, config: Mapping[str, Any], options: LoadOptions) -> MlxBackend:
        return MlxBackend(random_copy(self._loaded, config), options)

    @staticmethod
    @contextmanager
    def computing() -> Iterator[None]:
        """Raises `MemoryBudgetError` for MLX's out-of-memory errors, where MLX does not end the process."""
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if isinstance(error, MemoryError) or "memory" in str(error).lower():
                raise MemoryBudgetError(f"the device ran out of memory: free KV or load a smaller model ({error})") from error
            raise

    def open_pack(self) -> MlxPack:
        return MlxPack(make_caches(self.model, self._window, self._on_layer))

    def free_bytes(self) -> int:
        return self._loaded.free

    def set_kv_budget(self, nbytes: int) -> None:
        self._loaded.limits.apply(sum(int(a.nbytes) for _, a in flat_parameters(self.model)), nbytes)

    def put(self, pack: MlxPack, payload: MlxPayload, start: int, skip: int) -> None:
        payloads.put(pack, self.shapes, payload, start, skip, self._codec, self._work_dtype)

    def push(self, pack: MlxPack, step: ForwardStep) -> tuple[Float32, State | None]:
        started, n = time.monotonic(), len(step.tokens)
        with self.computing():
            self.count(n)
            self._slow = self._takes_long(n)
            logits, state = self._forward(pack, step, rows=False)
        due = [*logits, *(a for a in state or () if a is not None)]
        return self._awaited([pack], due, n, started, partial(self._on_host, logits)), state

    def _takes_long(self, tokens: int) -> bool:
        """Whether a forward of `tokens` tokens may be slow, by the time of the last one scaled with the tokens."""
        before, seconds = self._last
        return seconds * max(tokens / before, 1) > SLOW_SECONDS

    def _on_layer(self, keys: mx.array, values: mx.array) -> None:
        """Called by each layer; evaluates it in a slow forward. Evaluation of a whole graph shows no progress."""
        if self._slow:
            mx.eval(keys, values)
            self.layer_calls += 1

    def launch(
        self, packs: Sequence[MlxPack], steps: Sequence[ForwardStep], request: RankRequest | None = None
    ) -> Callable[[], Float32 | RankedRows]:
        started, n = time.monotonic(), sum(len(step.tokens) for step in steps)
        self._slow = self._takes_long(n)
        due: list[mx.array] = []
        answer: Callable[[], Float32 | RankedRows] = partial(self._on_host, due)
        with self.computing():
            if request is None and not self._is_joint(steps):
                for part, rows in self._parts(steps[0]):
                    self.count(len(part.tokens))
                    due += self._forward(packs[0], part, rows=rows)[0]
                    mx.async_eval(due, *map(MlxPack.arrays, packs))  # type: ignore[no-untyped-call]  # its stub leaves the arguments out
            else:
                self.count(n)
                if request is None:
                    due += self._joint_forward(packs, steps)
                else:
                    logits = self._device_logits(packs, steps)
                    answer, due = logits.begin_ranked(request), logits.due
                mx.async_eval(due, *map(MlxPack.arrays, packs))  # type: ignore[no-untyped-call]  # the same
        return partial(self._awaited, packs, due, n, started, answer)

    def ready(
        self, packs: Sequence[MlxPack], steps: Sequence[ForwardStep], request: RankRequest | None
    ) -> Callable[[Int64], Callable[[], Float32 | RankedRows]] | None:
        """Builds the graph of a forward; its tokens are written into its input later."""
        together = self._is_joint(steps)
        (part, rows), *more = [(steps[0], False)] if together else self._parts(steps[0])
        n = sum(len(step.tokens) for step in steps)
        if more or self._takes_long(n) or any(pack.capacity < pack.tree.size for pack in packs):
            return None  # parts are evaluated one by one, and each would copy the buffers that the next writes to
        blank, self._slow = Blank(n), False
        answer: Callable[[], Float32 | RankedRows]
        with self.computing(), ExitStack() as aside:
            built = [aside.enter_context(pack.set_aside()) for pack in packs]
            if request is not None:
                logits = self._device_logits(packs, steps, blank.array)
                answer, due = logits.begin_ranked(request), logits.due
            elif together:
                due = self._joint_forward(packs, steps, tokens=blank.array)
            else:
                due = self._forward(packs[0], part, rows=rows, tokens=blank.array)[0]
            if request is None:
                answer = partial(self._on_host, due)

        def launch(tokens: Int64) -> Callable[[], Float32 | RankedRows]:
            started = time.monotonic()
            self.count(blank.size)
            blank.fill(tokens)
            with self.computing():
                for pack, buffers in zip(packs, built, strict=True):
                    pack.adopt(buffers)
                mx.async_eval(due, *map(MlxPack.arrays, packs))  # type: ignore[no-untyped-call]  # its stub leaves the arguments out
            return partial(self._awaited, packs, due, blank.size, started, answer)

        return launch

    def launch_on_device(self, packs: Sequence[MlxPack], steps: Sequence[ForwardStep]) -> MlxLogits:
        started, n = time.monotonic(), sum(len(step.tokens) for step in steps)
        self._slow = self._takes_long(n)
        with self.computing():
            self.count(n)
            logits = self._device_logits(packs, steps)
        return self._awaited(packs, logits.due, n, started, lambda: logits)

    def _device_logits(
        self, packs: Sequence[MlxPack], steps: Sequence[ForwardStep], tokens: mx.array | None = None
    ) -> MlxLogits:
        """The graph of a forward whose logits stay on the device; not evaluated."""
        if self._is_joint(steps):
            found = self._joint_forward(packs, steps, tokens)
        else:
            *before, (last, _) = [(steps[0], False)] if tokens is not None else self._parts(steps[0])
            for part, rows in before:
                self._forward(packs[0], part, rows=rows)
                mx.async_eval(packs[0].arrays())  # type: ignore[no-untyped-call]  # its stub leaves the arguments out
            found = self._forward(packs[0], last, rows=False, tokens=tokens)[0]
        (logits,) = found or [mx.zeros((0, self._vocabulary))]
        return MlxLogits(logits, self.computing)

    def _is_joint(self, steps: Sequence[ForwardStep]) -> bool:
        """Whether the tokens are rows of width 1, each of which attends to its own pack."""
        return self.together and (len(steps) > 1 or steps[0].mask is not None)

    def _joint_forward(
        self, packs: Sequence[MlxPack], steps: Sequence[ForwardStep], tokens: mx.array | None = None
    ) -> list[mx.array]:
        """One call of the model over the tokens of all packs, as rows of width 1; not evaluated."""
        for pack, step in zip(packs, steps, strict=True):
            pack.begin(step, rows=False)
        whole, lengths = merged(steps) if len(steps) > 1 else steps[0], [len(step.tokens) for step in steps]
        offset, want, ends = mx.array(whole.positions.astype(np.int32)), whole.want, np.cumsum(lengths)[:-1].tolist()
        masks: dict[tuple[int, int | None], Any] = {}
        attention = zip(*map(attrgetter("attention"), packs), strict=True)
        caches = [JointCache(layers, lengths, ends, offset, masks) for layers in attention]
        self._select.rows = None
        tokens = mx.array(whole.tokens.astype(np.int32)) if tokens is None else tokens
        with nullcontext() if whole.stacks is None else self._adapters.under(whole.stacks, want):
            if not len(want):
                (self._select.hidden if self._select else self.model)(tokens[:, None], cache=caches)
                return []
            if len(want) < len(whole.tokens) and self._select:
                self._select.batch = mx.array(want.astype(np.int32))
            try:
                out = self.model(tokens[:, None], cache=caches)[:, 0]  # (n or wanted, vocab)
            finally:
                self._select.batch = None
        if out.shape[0] > len(want):
            out = out[mx.array(want.astype(np.int32))]
        return [out.astype(mx.float32)]

    def _parts(self, step: ForwardStep) -> list[tuple[ForwardStep, bool]]:
        """The calls of the model for a step, and whether the tokens of each are batch rows.

        If only the logits of a long chain's last token are wanted, that token is a call of its own. For the other tokens only
        keys and values are evaluated: the last layer's attention, everything after it, and the head are never computed.
        """
        if step.mask is not None:
            return list(parts_of(step))
        last = len(step.tokens) - 1
        apart = last >= APART_TOKENS * len(self.model.layers) and step.want.tolist() == [last]
        if not apart or self.recurrent or step.path is not None or step.read is not None:
            return [(step, False)]
        return [(part_of(step, 0, last), False), (part_of(step, last, last + 1), False)]

    def _awaited(self, packs: Sequence[MlxPack], due: Sequence[mx.array], n: int, started: float, answer: Callable[[], T]) -> T:
        with self.computing():
            mx.eval(due, *map(MlxPack.arrays, packs))
            self._last = n, time.monotonic() - started
            if not self.shapes:
                self._learn(packs[0])
            return answer()

    def _on_host(self, logits: Sequence[mx.array]) -> Float32:
        arrays = list(map(np.array, logits))
        if len(arrays) == 1:
            return arrays[0]
        return np.concatenate(arrays) if arrays else np.empty((0, self._vocabulary), np.float32)

    def push_rows(self, pack: MlxPack, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        started, (rows, width) = time.monotonic(), bucket.tokens.shape
        with self.computing():
            pack.begin_rows(bucket)
            if self.recurrent:
                pack.put_states(bucket.states or [None])
            self.count(bucket.tokens.size)
            self._slow = self._takes_long(bucket.tokens.size)
            columns = bucket.columns
            chosen = bool(self._select) and len(columns) < width
            self._select.rows = mx.array(columns.astype(np.int32)) if chosen else None
            out = self.model(mx.array(bucket.tokens.astype(np.int32)), cache=pack.caches)  # (rows, columns, vocab)
            logits, wanted = out.flatten(0, 1).astype(mx.float32), bucket.wanted(chosen=chosen)
            if wanted is not None:
                logits = logits[mx.array(wanted.astype(np.int32))]
            states: Sequence[Arrays | None] = [None] * rows
            if self.recurrent:
                states = pack.get_states(rows)
                pack.put_states([None])
            answer = [logits] if len(bucket.want) else []
        due = [*answer, *(a for state in states for a in state or () if a is not None)]
        return self._awaited([pack], due, bucket.tokens.size, started, partial(self._on_host, answer)), states

    def take_cost(self, pack: MlxPack, slots: Int64) -> Cost:
        """Twice the size where rows are converted or coded, as all of them exist before they are stacked."""
        cost = super().take_cost(pack, slots)
        copied = self._codec.dtypes == (self._work_dtype,)
        return cost if copied and consecutive(slots) else Cost(cost.held, 2 * cost.held)

    def take(self, pack: MlxPack, slots: Int64) -> MlxPayload:
        slots = np.asarray(slots, np.int64)
        pack.tree.check_chain(slots)
        state = self._checkpoint(pack, slots)
        with self.computing():
            return payloads.take(pack, self.shapes, slots, state, self._codec)

    def take_many(self, pack: MlxPack, chains: Sequence[Int64]) -> list[MlxPayload]:
        if self.recurrent or len(chains) < 2:
            return super().take_many(pack, chains)
        pack.tree.check_chains(chains)
        with self.computing():
            return payloads.take_many(pack, self.shapes, chains, self._codec)

    def pack_bytes(self, pack: MlxPack) -> int:
        held = PACK_BYTES + sum(self.layer_bytes + cache.nbytes for cache in pack.attention)
        return held + state_size(pack.states.values())

    def finite_slots(self, pack: MlxPack) -> Bool:
        with self.computing():
            return np.array(pack.finite())

    def broken_weights(self) -> str | None:
        floats = ((name, a) for name, a in flat_parameters(self.model) if mx.issubdtype(a.dtype, mx.floating))
        return next((name for name, array in floats if not self.finite(array)), None)

    def finite(self, array: mx.array) -> bool:
        return bool(mx.isfinite(array).all().item())

    def resize(self, pack: MlxPack, capacity: int) -> None:
        if self.shapes:
            with self.computing():
                pack.resize(max(capacity, pack.tree.size), self.shapes, self._work_dtype)

    def gather(self, pack: MlxPack, slots: Int64, start: int) -> None:
        with self.computing():
            pack.gather(mx.array(slots.astype(np.int32)), start)

    def close(self, pack: MlxPack) -> None:
        pack.caches.clear()
        pack.attention.clear()
        pack.recurrent.clear()
        pack.states.clear()

    def restore(self, tensors: Stored) -> MlxPayload:
        with self.computing():
            return payloads.restore(tensors, self._codec, self.shapes, self.state_shapes, self._loaded.dtype)

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        with self.computing():
            self._select.rows = None
            tokens = mx.array(as_ids(ids).astype(np.int32))[None]
            caches = None if self._window is None else self._fresh(len(ids))
            parts = [(0, len(ids))]
            if self.recurrent and stacks is not None:  # some state-space modules take one token at a time
                parts, caches = stacks.runs(), make_prompt_cache(self.model)
            for start, stop in parts:
                part = None if stacks is None else stacks.part(slice(start, stop))
                with self._adapters.under(part, np.arange(stop - start)):
                    out = self.model(tokens[:, start:stop], cache=caches)
            return np.array(out[0, -1].astype(mx.float32))

    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        with self.computing(), self._adapters.under(stacks, np.arange(tokens.size)):
            caches = None if self._window is None else [SlidingWindow(self._window) for _ in self.model.layers]
            self.count(tokens.size)
            hidden = self._select.hidden(mx.array(tokens.astype(np.int32)), caches)  # (rows, length, hidden)
            return np.array(hidden.astype(mx.float32))

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        return self._adapters.targets

    def load_adapter(self, adapter: Adapter) -> int:
        with self.computing():
            return self._adapters.load(adapter)

    def unload_adapter(self, digest: str) -> None:
        self._adapters.unload(digest)

    def unload(self) -> None:
        self._loaded.limits.reset()
        self._adapters.close()
        for module in self.model.modules():  # they are in reference cycles, and would hold weights until a collection
            module.clear()
        del self.model, self._loaded, self._select, self._adapters, self._readings
        self.reclaim()
        _clear_streams()

    def reclaim(self) -> None:
        mx.clear_cache()

    def _fresh(self, n: int) -> list[Any]:
        """Empty caches for one plain forward, the only way to give mlx-lm's mistral its window."""
        pack = self.open_pack()
        everything = np.arange(n)
        pack.begin(ForwardStep(everything, everything, everything, everything), rows=False)
        return pack.caches

    def _forward(
        self, pack: MlxPack, step: ForwardStep, *, rows: bool, tokens: mx.array | None = None
    ) -> tuple[list[mx.array], State | None]:
        """One call of the model, not evaluated: the wanted logits, if any, and the state after it.

        With `rows` each token is a batch row of width 1. `tokens` replace the step's own.
        """
        pack.begin(step, rows=rows)
        if self.recurrent:
            pack.put_states([step.state])
        want = None if len(step.want) == len(step.tokens) else mx.array(step.want.astype(np.int32))
        chosen = step.read is not None or (want is not None and bool(self._select) and not rows)
        self._select.rows = want if chosen and step.read is None else None
        if tokens is None:
            tokens = mx.array(step.tokens.astype(np.int32))
        call = self.model if step.read is None else partial(self._readings.read, step.read, step.want)
        with self._adapters.under(step.stacks, step.want):
            out = call(tokens[:, None] if rows else tokens[None], cache=pack.caches)
        out = out[:, 0] if rows else out[0]  # (n or wanted, vocab)
        if want is not None and not chosen:
            out = out[want]
        state: Arrays | None = None
        if self.recurrent:
            (state,) = pack.get_states(1)
            pack.put_states([None])
        return ([out.astype(mx.float32)] if len(step.want) else []), state

    def learn_unread(self, found: FirstForward) -> None:  # noqa: ARG002  # the graph also has windows and dtypes
        """`_learn` from the graph of a first forward, which is not evaluated."""
        self._slow = False  # else each layer would be evaluated
        pack, one = self.open_pack(), np.zeros(1, np.int64)
        try:
            _, (step,), _ = self._appended([PackTokens(pack, one, np.array([ROOT]), one)], [])
            self._forward(pack, step, rows=False)
            self._learn(pack)
        finally:
            self.close(pack)

    def _learn(self, pack: MlxPack) -> None:
        """Reads the layers' shapes and windows, which they know after a first forward."""
        shapes = tuple(cache.shape for cache in pack.attention if cache.shape is not None)
        self._work_dtype = next((cache.keys.dtype for cache in pack.attention if cache.keys is not None), self._work_dtype)
        self.learn_sizes(shapes, self._work_dtype.size)
        self.reach = reach_of(cache.window for cache in pack.attention)
        kinds = {"full" if cache.window is None else "sliding" for cache in pack.attention}
        self._kinds = tuple(sorted(kinds | ({"recurrent"} if self.recurrent else set())))

    def _describe(self, options: LoadOptions, warnings: tuple[str, ...]) -> ModelInfo:
        loaded, config = self._loaded, self._loaded.config
        layers = len(self.model.layers)
        dtype, row = _name(loaded.dtype), self._codec.row_bytes
        geometry = {"shapes": self.shapes, "layers": layers}
        kv_print = facts.kv_fingerprint(loaded.weights_digest, "mlx", dtype, self._kv.name, geometry)
        heads = int(config.get("num_attention_heads") or config.get("n_head") or 0)
        device = "cpu" if mx.default_device() == mx.cpu else "gpu"
        return ModelInfo(
            name=loaded.name,
            backend="mlx",
            device=device,
            dtype=dtype,
            architecture=str(config.get("model_type", "")),
            layers=layers,
            heads=heads,
            kv_heads=int(config.get("num_key_value_heads") or heads),
            hidden_size=int(config.get("hidden_size") or config.get("n_embd") or 0),
            vocab_size=self._vocabulary,
            parameters=count_parameters(self.model),
            quantisation=loaded.quantisation,
            attention_kinds=self._kinds,
            context_length=facts.context_length(config, options),
            whole_context=facts.whole_context(config),
            has_template=loaded.has_template,
            kv_bytes_per_token=sum(h * (row(k) + row(v)) for h, k, v in self.shapes),
            kv_fingerprint=kv_print,
            model_fingerprint=facts.model_fingerprint(kv_print, loaded.text_digest),
            options=facts.options_in_force(
                options, device=device, dtype=dtype, kv_dtype=self._kv.name, attention="sdpa", weights="auto", offload="none"
            ),
            capabilities=("tree",) if self.tree else (),
            warnings=warnings,
        )


class _Streams(threading.local):
    """The CPU stream of each thread, until the thread ends.

    MLX would make a stream for each thread that computes, each with a thread of its own that never ends and keeps its heap.
    """

    taken: _Taken | None = None


class _Taken:
    """A stream, returned for reuse when its thread ends."""

    def __init__(self) -> None:
        self.stream = _FREE_STREAMS.pop() if _FREE_STREAMS else mx.new_thread_unsafe_stream(mx.cpu)

    def __del__(self) -> None:
        _FREE_STREAMS.append(self.stream)


_FREE_STREAMS: list[mx.Stream] = []
_STREAMS = _Streams()


def _take_stream() -> None:
    """Gives a thread its stream before it uses MLX; not the main thread, whose stream belongs to the user."""
    if _STREAMS.taken is None and threading.current_thread() is not threading.main_thread():
        _STREAMS.taken = _Taken()
        mx.set_default_stream(_STREAMS.taken.stream)


def _clear_streams() -> None:
    """Called when a thread is done with MLX, else the process may abort at its end (mlx pull 4373)."""
    if threading.current_thread() is not threading.main_thread():
        mx.clear_streams()


def _name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")
