"""Any causal language model of transformers as a backend."""

from __future__ import annotations

import inspect
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers.pytorch_utils import Conv1D

from runtime.adapters.adapter import Adapter, ModuleShape
from runtime.adapters.stacks import TokenStacks
from runtime.backends import facts
from runtime.backends.base import ForwardInterrupted
from runtime.backends.hf import payload as payloads
from runtime.backends.hf.adapters import TorchAdapters
from runtime.backends.hf.cache import SlotLayer, Tensors, TorchPack, layer_plan, to_device
from runtime.backends.hf.forward import OWN, ForwardArguments, attention_of
from runtime.backends.hf.graphs import Graphs
from runtime.backends.hf.loading import LoadedModel, load_model, random_copy
from runtime.backends.hf.logits import TorchLogits
from runtime.backends.hf.offload import Offload
from runtime.backends.hf.payload import TorchPayload, codec_of
from runtime.backends.hf.readings import Readings
from runtime.backends.hf.threads import CHOICE, MANY_TOKENS, Threads, one_thread
from runtime.backends.hf.weights import PackedLinear
from runtime.backends.packs.chains import Bucket, reach_of
from runtime.backends.packs.packed import PACK_BYTES, FirstForward, PackedBackend, as_ids, state_size
from runtime.backends.packs.tree import Bool, Float32, ForwardStep, Int64, Ragged, State, merged, runs
from runtime.backends.selftest import Copy, Measurements, Seconds, first_forward, kv_warning, prove, stream_warning
from runtime.backends.small import small_copies
from runtime.backends.stored import Stored
from runtime.errors import MemoryBudgetError, UnsupportedFeatureError
from runtime.info import ModelInfo
from runtime.loading.model_folder import ModelFolder
from runtime.numerics.ranking import RankedRows, RankRequest
from runtime.options.load import BATCH_ROWS, CUDA_CHUNK_TOKENS, LoadOptions

LIBRARIES = ("torch", "transformers")
CUDA_GROWTH = 512  # least number of slots that a pack grows by, as its graph is recorded again each time
ROW_TIMES, ROWS_SHARE, MOST_ROWS = 4, 16, 512  # copies of a row; rows may take 1 / 16 of free memory; most rows that are of use
HALF = (torch.float16, torch.bfloat16)
AMPERE = (8, 0)  # least compute capability of torch's kernel for chains of different length
WIDEST = 256  # largest head dimension of that kernel
RAGGED_TOKENS = 64  # least tokens of a forward with separate attentions, and for every 4 chains; with fewer, a mask is as fast


def load(source: ModelFolder | tuple[Any, Any], options: LoadOptions) -> HfBackend:
    """The registry's factory.

    Args:
        source: A checked model folder, or a ready (model, tokenizer) pair, whose model is used in place.
        options: `device`, `dtype`, `attention`, `threads`, `context_length`, `kv_dtype` and `offload` are read here.
    """
    loaded = load_model(source, options)
    try:
        backend = HfBackend(loaded, options)
        backend.check(options)
        return backend
    except BaseException:
        loaded.undo.close()
        raise


def _after_layer(backend: Callable[[], HfBackend | None], *_: object) -> None:
    if (own := backend()) is not None:
        own.layer_calls += 1
        if own.interrupted is not None and own.interrupted():
            raise ForwardInterrupted


class HfBackend(PackedBackend[TorchPack]):
    """A torch model and its packs. Owner thread only."""

    readings = frozenset(Readings.TABLE)
    layer_bytes = 1_500  # of Python objects for each layer of a pack; `PACK_BYTES` are those of the pack itself
    # one product for all rows that share keys reads these once; measured on a CPU with 1 to 8 rows
    masked_per_copy = 8.0

    def __init__(self, loaded: LoadedModel, options: LoadOptions) -> None:
        self._loaded = loaded
        self.model = loaded.model  # the library's; owner thread only
        self._takes = frozenset(inspect.signature(self.model.forward).parameters)
        if not self._takes & {"past_key_values", "cache_params"}:
            raise UnsupportedFeatureError(f"{type(self.model).__name__} takes no cache, so its tokens cannot be reused")
        self._device: torch.device = loaded.device
        self._dtype: torch.dtype = self.model.dtype
        self._kv = facts.kv_format(options, _name(self._dtype))
        self._weights = _name(self._dtype) if loaded.weights == "auto" else loaded.weights
        self._codec = codec_of(self._kv)
        lists = [each for each in self.model.modules() if isinstance(each, torch.nn.ModuleList)]
        after = partial(_after_layer, weakref.ref(self))  # the model may be the caller's and outlive this backend
        hooks = [layer.register_forward_hook(after) for layers in lists for layer in layers]
        for hook in hooks:
            loaded.undo.callback(hook.remove)
        self._adapters = TorchAdapters(self.model, self._dtype, self._device)
        self._readings = Readings(self.model, int(loaded.config.num_hidden_layers))
        self._threads: Threads | None = None  # None: the user chose a count
        self._plan = layer_plan(loaded.config)
        layers = [make() for make in self._plan]
        self.recurrent = any(hasattr(layer, "recurrent_states") for layer in layers)
        self._windows: set[int | None] = {layer.window for layer in layers if isinstance(layer, SlotLayer)}
        self.reach = reach_of(self._windows)
        eager = attention_of(self.model) == "eager"
        self._heads = int(getattr(loaded.config, "num_attention_heads", 0) or 0)
        self._kv_heads = int(getattr(loaded.config, "num_key_value_heads", None) or self._heads)
        folds = self._heads // max(self._kv_heads, 1) if attention_of(self.model) == OWN else 1
        self._arguments = ForwardArguments(self._takes, self._windows, self._device, self._dtype, eager=eager, heads=folds)
        self._graphs: Graphs | None = None
        self.tree = not self.recurrent and "position_ids" in self._takes
        self.shares = self.recurrent and attention_of(self.model) == OWN
        self.together = self.tree and attention_of(self.model) == OWN
        self.on_device = self.together and self._device.type == "cuda"
        self.interruptible = self._device.type == "cpu" and bool(hooks)
        if self._device.type == "cuda":  # launching kernels costs more than masked keys or larger chunks
            self.apart, self.unified, self.chunk_tokens, self.growth = False, False, CUDA_CHUNK_TOKENS, CUDA_GROWTH
            row = ROW_TIMES * torch.float32.itemsize * int(self.model.get_output_embeddings().weight.shape[0])
            self.batch_rows = min(max(self.free_bytes() // (ROWS_SHARE * row), BATCH_ROWS), MOST_ROWS)
            if self.together and loaded.offload is None:
                self._graphs = Graphs(self.model, self._arguments, [*self._windows], self._device)
        self.info = self._describe(options, warnings=())

    def check(self, options: LoadOptions) -> None:
        """Tests the numbers on a small copy, and adds warnings to `info`.

        Raises:
            ModelLoadError: They depend on how tokens are pushed, or are not finite.
        """
        loaded = self._loaded
        measured = Measurements.of(self.info, loaded.weights_digest if loaded.folder else None, LIBRARIES)
        first_forward(self, measured)
        with one_thread():
            warnings = prove(self, self._copies(options))
            if not self.tree:  # the graphs mask as trees do
                self._graphs = None
        warnings += kv_warning(self, self._kv, measured) + self._weights_warning()
        warnings += stream_warning(self, self._kv) + loaded.ignored + facts.rope_warning(loaded.config.to_dict())
        if loaded.offload is not None:
            warnings += (loaded.offload.warning(self._offloaded_seconds(loaded.offload, measured)),)
        if self._device.type == "cpu" and options.threads is None and loaded.offload is None and loaded.folder:
            self._threads = CHOICE.measure(loaded.weights_digest, self._weights, lambda: self.logits_uncached([0]))
        self.info = self._describe(options, warnings)

    def _copies(self, options: LoadOptions) -> Iterator[Copy]:
        """Small copies for `prove`: plain weights in float32 on the same device, with the same attention."""
        plain = replace(options, dtype="float32", weights="auto", kv_dtype="auto", offload="none")
        for small in small_copies(self._loaded.config.to_dict(), self.info.context_length):
            chosen = replace(plain, context_length=small.context)
            key = type(self._loaded.model), attention_of(self._loaded.model), repr(small), repr(chosen)
            yield Copy(partial(self._copy, small.config, chosen), small.lengths, key)

    def _copy(self, config: Mapping[str, Any], options: LoadOptions) -> HfBackend:
        return HfBackend(random_copy(self._loaded, config), options)

    def _offloaded_seconds(self, offload: Offload, measured: Measurements) -> float:
        """Seconds of a forward that reads weights from disk: the second one after this load or an earlier one."""
        what = f"forward with {offload.on_disk} bytes on disk"
        found = measured.read(what, Seconds)
        if found is None:
            started = time.monotonic()
            self.logits_uncached([1])
            found = Seconds(time.monotonic() - started)
            measured.save(what, found)
        return found.seconds

    def learn_unread(self, found: FirstForward) -> None:
        self.learn_sizes(found.shapes, self._dtype.itemsize)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the linear modules' weights, packed or not, which a token of one stream reads."""
        linear = [m for m in self.model.modules() if isinstance(m, torch.nn.Linear | Conv1D | PackedLinear)]
        return int(sum(m.nbytes if isinstance(m, PackedLinear) else m.weight.nbytes for m in linear))

    def count(self, tokens: int) -> None:
        super().count(tokens)
        if self._threads is not None and (tokens >= MANY_TOKENS or time.monotonic() >= self._threads.due):
            self._threads.set_for(tokens)

    @staticmethod
    @contextmanager
    def computing() -> Iterator[None]:
        """Switches off autograd; raises `MemoryBudgetError` where the device runs out of memory."""
        try:
            with torch.inference_mode():
                yield
        except RuntimeError as error:  # torch.OutOfMemoryError is one; MPS and the CPU allocator raise it bare
            text = str(error)
            if isinstance(error, torch.OutOfMemoryError) or "out of memory" in text or "can't allocate memory" in text:
                traceback.clear_frames(error.__traceback__)  # frees their activations for another try
                raise MemoryBudgetError(
                    f"the device ran out of memory: free KV or load a smaller model ({text[:200]})"
                ) from error
            raise

    def open_pack(self) -> TorchPack:
        return TorchPack(self._plan, self.shapes, torch.empty(0, dtype=self._dtype, device=self._device))

    def put(self, pack: TorchPack, payload: TorchPayload, start: int, skip: int) -> None:
        payloads.put(pack, payload, start, skip, self._codec)

    def push(self, pack: TorchPack, step: ForwardStep) -> tuple[Float32, State | None]:
        with self.computing():
            if self.recurrent:
                pack.put_states([step.state])
            logits = self._logits([pack], [step])
            state: Tensors | None = None
            if self.recurrent:
                (state,) = pack.get_states(1)
                pack.put_states([None])
            return logits.float().cpu().numpy(), state

    def launch(
        self, packs: Sequence[TorchPack], steps: Sequence[ForwardStep], request: RankRequest | None = None
    ) -> Callable[[], Float32 | RankedRows]:
        if request is not None:
            return partial(self.launch_on_device(packs, steps).ranked, request)
        got = self._logits(packs, steps)

        def wait() -> Float32:
            with self.computing():
                logits: Float32 = got.float().cpu().numpy()
                return logits

        return wait

    def launch_on_device(self, packs: Sequence[TorchPack], steps: Sequence[ForwardStep]) -> TorchLogits:
        return TorchLogits(self._logits(packs, steps), self.computing)

    def _logits(self, packs: Sequence[TorchPack], steps: Sequence[ForwardStep]) -> torch.Tensor:
        """One forward over some packs: the wanted raw logits ``(rows, vocab)`` on the device, or the reading in their place."""
        step, pack = merged(steps) if len(steps) > 1 else steps[0], packs[0]
        under = nullcontext() if step.stacks is None else self._adapters.under(step.stacks, step.want)
        with self.computing(), under:
            self.count(len(step.tokens))
            if len(packs) > 1:
                arguments = self._arguments.of_joint(packs, steps, step)
            else:
                recorded = None if self._graphs is None or step.read is not None else self._graphs.logits(pack, step)
                if recorded is not None:
                    return recorded
                arguments = self._arguments.of(pack, step)
                if step.read is not None:
                    return self._readings.read(step.read, arguments, to_device(step.want, self._device))
            logits: torch.Tensor = self.model(**arguments).logits[0]
            if self.shapes == ():
                self.learn_sizes(pack.shapes, self._dtype.itemsize)
            return logits if "logits_to_keep" in self._takes else logits[to_device(step.want, self._device)]

    def ragged_chains(self, pack: TorchPack, base: int, parents: Int64) -> Ragged | None:
        """Chains of many tokens in half precision, which one kernel takes together whatever their lengths."""
        if not (self._dtype in HALF and torch.cuda.get_device_capability(self._device) >= AMPERE):
            return None
        if not all(key == value <= WIDEST and key % 8 == 0 for _, key, value in self.shapes):
            return None
        cuts = list(runs(parents, base))
        if len(parents) < RAGGED_TOKENS * max(len(cuts) // 4, 1):
            return None
        paths = pack.tree.paths([int(parents[start]) for start, _ in cuts])
        if sum(map(len, paths)) + len(parents) > pack.tree.size:  # an attention with a mask reads shared slots once
            return None
        return Ragged(np.array([stop - start for start, stop in cuts]), paths)

    def push_rows(self, pack: TorchPack, bucket: Bucket) -> tuple[Float32, Sequence[State | None]]:
        rows, width = bucket.tokens.shape
        states: Sequence[State | None] = [None] * rows
        with self.computing():
            if self.recurrent:
                pack.put_states(bucket.states or [None])
            self.count(bucket.tokens.size)
            logits = self.model(**self._arguments.of_rows(pack, bucket)).logits  # (rows, columns, vocab)
            wanted = bucket.wanted(chosen=logits.shape[1] < width)
            logits = logits.flatten(0, 1)
            if wanted is not None:
                logits = logits[to_device(wanted, self._device)]
            if self.recurrent:
                states = pack.get_states(rows)
                pack.put_states([None])
            return logits.float().cpu().numpy(), states

    def take(self, pack: TorchPack, slots: Int64) -> TorchPayload:
        slots = np.asarray(slots, np.int64)
        pack.tree.check_chain(slots)
        state = self._checkpoint(pack, slots)
        with self.computing():
            return payloads.take(pack, slots, state, self._codec, self._device)

    def take_many(self, pack: TorchPack, chains: Sequence[Int64]) -> list[TorchPayload]:
        if self.recurrent or len(chains) < 2:
            return super().take_many(pack, chains)
        pack.tree.check_chains(chains)
        with self.computing():
            return payloads.take_many(pack, chains, self._codec, self._device)

    def pack_bytes(self, pack: TorchPack) -> int:
        held = PACK_BYTES + sum(self.layer_bytes + layer.nbytes for layer in pack.attention)
        return held + state_size(pack.states.values()) if pack.states else held

    def finite_slots(self, pack: TorchPack) -> Bool:
        with self.computing():
            finite: Bool = pack.finite().cpu().numpy()
            pack.sound &= bool(finite.all())
            return finite

    def broken_weights(self) -> str | None:
        tensors = ((name, tensor) for name, tensor in self.model.named_parameters() if tensor.device.type != "meta")
        return next((name for name, tensor in tensors if not torch.isfinite(tensor).all()), None)

    def finite(self, array: torch.Tensor) -> bool:
        return bool(torch.isfinite(array).all())

    def resize(self, pack: TorchPack, capacity: int) -> None:
        with self.computing():
            pack.resize(max(capacity, pack.tree.size))

    def gather(self, pack: TorchPack, slots: Int64, start: int) -> None:
        with self.computing():
            pack.gather(to_device(slots, self._device), start)

    def close(self, pack: TorchPack) -> None:
        if self._graphs is not None:
            self._graphs.forget(pack)
        pack.cache.layers.clear()
        pack.attention.clear()
        pack.states.clear()

    def restore(self, tensors: Stored) -> TorchPayload:
        with self.computing():
            return payloads.restore(tensors, self._codec, self.shapes, self.state_shapes, self._dtype, self._device)

    def logits_uncached(self, ids: Sequence[int], stacks: TokenStacks | None = None) -> Float32:
        with self.computing(), self._adapters.under(stacks, np.array([len(ids) - 1])):
            tokens = to_device(as_ids(ids), self._device)[None]
            logits: Float32 = self.model(input_ids=tokens, use_cache=False).logits[0, -1].float().cpu().numpy()
            return logits

    def hidden_states(self, tokens: Int64, stacks: TokenStacks | None = None) -> Float32:
        with self.computing(), self._adapters.under(stacks, np.arange(tokens.size)):
            ids = to_device(np.asarray(tokens, np.int64), self._device)
            self.count(tokens.size)
            got: Float32 = self._readings.states(input_ids=ids, use_cache=False).float().cpu().numpy()  # (rows, length, hidden)
            return got

    def adapter_targets(self) -> Mapping[str, ModuleShape]:
        return self._adapters.targets

    def load_adapter(self, adapter: Adapter) -> int:
        with self.computing():
            held = self._adapters.load(adapter)
        if self.recurrent:  # state-space code reads some weights without calling their module
            self._adapters.check_called(adapter.digest, lambda stacks: self.logits_uncached([0, 0], stacks))
        return held

    def unload_adapter(self, digest: str) -> None:
        self._adapters.unload(digest)

    def free_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        if self._device.type == "mps":
            return max(int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()), 0)
        return super().free_bytes()

    def unload(self) -> None:
        self._loaded.undo.close()
        self._adapters.close()
        del self.model, self._loaded, self._adapters, self._readings, self._graphs
        self.reclaim()

    def reclaim(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        elif self._device.type == "mps":
            torch.mps.empty_cache()

    def _describe(self, options: LoadOptions, warnings: tuple[str, ...]) -> ModelInfo:
        loaded, config = self._loaded, self._loaded.config
        geometry = {"shapes": self.shapes, "layers": config.num_hidden_layers}
        dtype, row = _name(self._dtype), self._codec.row_bytes
        computed = dtype if self._weights == dtype else f"{dtype}, {self._weights} weights"
        kv_print = facts.kv_fingerprint(loaded.weights_digest, "hf", computed, self._kv.name, geometry)
        return ModelInfo(
            name=loaded.name,
            backend="hf",
            device=str(self._device),
            dtype=dtype,
            architecture=str(config.model_type),
            layers=int(config.num_hidden_layers),
            heads=self._heads,
            kv_heads=self._kv_heads,
            hidden_size=int(config.hidden_size),
            vocab_size=int(self.model.get_output_embeddings().weight.shape[0]),
            parameters=loaded.parameters,
            quantisation=loaded.quantisation or (None if self._weights == dtype else f"{self._weights} weights"),
            attention_kinds=self._kinds(),
            context_length=facts.context_length(config.to_dict(), options),
            whole_context=facts.whole_context(config.to_dict()),
            has_template=loaded.has_template,
            kv_bytes_per_token=sum(h * (row(k) + row(v)) for h, k, v in self.shapes),
            kv_fingerprint=kv_print,
            model_fingerprint=facts.model_fingerprint(kv_print, loaded.text_digest),
            options=facts.options_in_force(
                options,
                max_batch_rows=options.max_batch_rows or self.batch_rows,
                device=str(self._device),
                dtype=dtype,
                weights=self._weights,
                threads=torch.get_num_threads() if self._device.type == "cpu" else options.threads,
                kv_dtype=self._kv.name,
                attention=attention_of(self.model),
            ),
            capabilities=("tree",) if self.tree else (),
            warnings=warnings,
        )

    def _weights_warning(self) -> tuple[str, ...]:
        if self._weights == _name(self._dtype):
            return ()
        found = self._loaded.perplexities
        said = "" if found is None else f"; perplexity of a fixed text: {found}"
        return (f"weights are held in {self._weights}: numbers are not those of float32 weights{said}",)

    def _kinds(self) -> tuple[str, ...]:
        kinds = {"full" if window is None else "sliding" for window in self._windows}
        return tuple(sorted(kinds | ({"recurrent"} if self.recurrent else set())))


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
