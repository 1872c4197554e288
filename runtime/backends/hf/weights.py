"""Weights of linear modules in fewer bits, on a CPU, with torch's own kernels; what goes in and comes out stays float32.

A token of one stream reads every weight once, so fewer bytes are fewer milliseconds. float16 multiplies with float32
activations (FBGEMM, x86 alone). bfloat16, int8 and int4 round activations to bfloat16, which is the only form that their
kernels are vectorised for. The head stays in float16 under int8 and int4 (in float32 where there is no FBGEMM): logits
rounded to bfloat16 would tie.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

import torch
from torch.nn.functional import cross_entropy, linear
from transformers.pytorch_utils import Conv1D

from runtime.backends import facts
from runtime.backends.packs.packed import RETURN_BYTES
from runtime.errors import RuntimeFault
from runtime.loading.measurements import MOST_TOKENS, PLAIN, TEXT, Perplexities, keep_perplexities, kept_perplexities
from runtime.loading.model_folder import ModelFolder
from runtime.memory import return_memory
from runtime.options.load import LoadOptions
from runtime.text.tokenizer import Tokenizer

GROUP = 32  # weights of a row that share a step and a middle in int4
INNER_K = 2  # how torch's int4 packing interleaves; its CPU kernel takes any
MANY_ROWS = 32  # from so many on torch's int8 kernel is slower than making bfloat16 of the weights first


class PackedLinear(torch.nn.Module, ABC):  # type: ignore[misc]  # torch is not followed by mypy
    """A linear module whose weights only a kernel can read.

    Attributes:
        in_features: Width of what goes in.
        out_features: Width of what comes out.
        weight: Shape and dtype without numbers (on the device "meta"), for code that asks for the dtype of a head.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty(weight.shape, device="meta")
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., in) float32`` to ``(..., out) float32``; without numbers, on the device "meta", the shape alone."""
        if x.is_meta:
            return x.new_empty(*x.shape[:-1], self.out_features)
        y = self.product(x.reshape(-1, self.in_features).contiguous()).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    @abstractmethod
    def product(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, out) float32``, without the bias."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of the weights."""


class Float16Linear(PackedLinear):
    """Half the bytes; sums are float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y

    @property
    def nbytes(self) -> int:
        return 2 * int(self.weight.numel())


class Bfloat16Linear(PackedLinear):
    """Half the bytes; activations are rounded too."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = weight.bfloat16()

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x.bfloat16(), self._packed).float()

    @property
    def nbytes(self) -> int:
        return int(self._packed.nbytes)


class Int8Linear(PackedLinear):
    """A byte for a weight, a float32 step for a row; symmetric."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._steps = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)  # (out,)
        self._packed = (weight / self._steps[:, None]).round().to(torch.int8)
        self._ones = torch.ones(len(weight), dtype=torch.bfloat16)  # the kernel's own steps would be rounded to bfloat16

    @staticmethod
    def takes(weight: torch.Tensor) -> bool:
        """Whether torch's kernel, which checks nothing, can multiply a matrix of this shape."""
        return bool(weight.shape[1] % 32 == 0 and weight.shape[0] % 8 == 0)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        rows = x.bfloat16()
        if len(rows) < MANY_ROWS:
            y: torch.Tensor = torch._weight_int8pack_mm(rows, self._packed, self._ones)  # noqa: SLF001  # torch has no other name
        else:
            y = linear(rows, self._packed.bfloat16())  # exact: eight bits hold every one of them
        return y.float() * self._steps

    @property
    def nbytes(self) -> int:
        return int(self._packed.nbytes + self._steps.nbytes)


class Int4Linear(PackedLinear):
    """Half a byte for a weight, a step and a middle in bfloat16 for 32 of a row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        groups = weight.view(len(weight), -1, GROUP)  # (out, groups, 32)
        low, high = groups.amin(-1), groups.amax(-1)
        steps = ((high - low) / 15).clamp_min(1e-8).bfloat16().float()  # as the kernel will read them
        middles = (low + 8 * steps).bfloat16().float()
        quantised = ((groups - middles[..., None]) / steps[..., None] + 8).round().clamp(0, 15)
        whole = quantised.view_as(weight).to(torch.int32)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, INNER_K)  # noqa: SLF001  # its only name
        self._scales = torch.stack([steps, middles], -1).transpose(0, 1).contiguous().bfloat16()  # (groups, out, 2)

    @staticmethod
    def takes(weight: torch.Tensor) -> bool:
        """Whether torch's kernel can multiply a matrix of this shape."""
        return bool(weight.shape[1] % GROUP == 0 and weight.shape[0] % 16 == 0)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001  # its only name
        y: torch.Tensor = multiply(x.bfloat16(), self._packed, GROUP, self._scales)
        return y.float()

    @property
    def nbytes(self) -> int:
        return int(self._packed.nbytes + self._scales.nbytes)


def check_weights(
    options: LoadOptions, device: torch.device, *, ready: bool = False, quantised: bool = False
) -> tuple[str, ...]:
    """Whether weights can be held as `weights` says.

    Args:
        options: As they were given.
        device: Where the model computes.
        ready: Whether it is a caller's own.
        quantised: Whether its folder has them in fewer bits already.

    Returns:
        Why they are held as they are, where they cannot and it was but a wish; else nothing.

    Raises:
        UnsupportedFeatureError: They cannot; the message has what can.
    """
    weights = options.weights
    if weights == "auto":
        return ()
    why = ""
    if device.type != "cpu":
        why = f"is for the processor; on {device} choose dtype='bfloat16', or a quantised model for mlx"
    elif options.dtype not in ("auto", "float32"):
        why = f"is computed with in float32: leave out dtype={options.dtype!r}"
    elif options.offload != "none":
        why = "and offload='disk' contradict each other: choose one of the two"
    elif quantised:
        why = "is for plain weights; these are quantised: leave it out, or import the file as float32 first"
    elif ready:
        why = "takes a model folder; a model that is in memory already is used as it is"
    elif weights == "float16" and not has_float16():
        why = "needs FBGEMM, which torch has on x86 alone; choose bfloat16 or int8"
    return (facts.passed_over(options, "weights", f"weights={weights!r} {why}"),) if why else ()


def has_float16() -> bool:
    """Whether torch can multiply float16 weights with float32 activations here."""
    return torch.backends.quantized.engine in ("x86", "fbgemm")


def pack_weights(model: Any, weights: str) -> None:
    """Replaces the linear modules of a float32 model on the CPU, one after the other.

    Those that a forward never calls stay: state-space code reads some weights without calling their module. What the weights
    were read from is let go, and what packing took on the way goes back to the system.

    Args:
        model: Of transformers.
        weights: "float16", "bfloat16", "int8" or "int4".
    """
    head, freed = model.get_output_embeddings(), 0
    for path, module in _called(model).items():
        matrix = module.weight.detach().T if isinstance(module, Conv1D) else module.weight.detach()
        kind = _kind(weights, matrix, head=module is head)
        if kind is None:
            continue
        packed = kind(matrix.contiguous(), None if module.bias is None else module.bias.detach().clone())
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, packed.eval())
        freed += matrix.nbytes
        if freed >= RETURN_BYTES:
            return_memory()
            freed = 0
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # else it keeps the whole file mapped that it came out of
    return_memory()


def weight_bytes(model: Any) -> int:
    """Bytes of all linear modules, packed or not: what a token of one stream reads."""
    plain = (m.weight.nbytes for m in model.modules() if isinstance(m, torch.nn.Linear | Conv1D))
    return int(sum(plain) + sum(m.nbytes for m in model.modules() if isinstance(m, PackedLinear)))


def _called(model: Any) -> dict[str, Any]:
    """The linear modules that a forward of one token calls, by path."""
    found: set[str] = set()
    modules = {path: m for path, m in model.named_modules() if isinstance(m, torch.nn.Linear | Conv1D)}
    hooks = [module.register_forward_pre_hook(lambda *_, path=path: found.add(path)) for path, module in modules.items()]
    try:
        with torch.inference_mode():
            model(input_ids=torch.zeros(1, 1, dtype=torch.long), use_cache=False)
    finally:
        for hook in hooks:
            hook.remove()
    return {path: module for path, module in modules.items() if path in found}


def _kind(weights: str, matrix: torch.Tensor, *, head: bool) -> type[PackedLinear] | None:
    """The module for a matrix; float16, or none, where the form asked for has no kernel for it."""
    if weights == "bfloat16" and not head:
        return Bfloat16Linear
    if weights == "int8" and not head and Int8Linear.takes(matrix):
        return Int8Linear
    if weights == "int4" and not head and Int4Linear.takes(matrix):
        return Int4Linear
    return Float16Linear if has_float16() else None


_ROWS = 32  # of logits that are copied at once


def pack_and_measure(model: Any, source: ModelFolder, weights: str) -> Perplexities | None:
    """Packs a float32 model's linear weights; its perplexity before and after, out of what is kept where it is known.

    Args:
        model: On the CPU.
        source: Its folder, for the tokenizer.
        weights: See `pack_weights`.

    Returns:
        None where the text has no tokens that the model knows.
    """
    ids = _ids(source, int(model.config.get_text_config(decoder=True).vocab_size))
    found = kept_perplexities(source.weights_digest)
    complete = {PLAIN, weights} <= found.keys()
    if ids and PLAIN not in found:
        found[PLAIN] = perplexity(model, ids)
    pack_weights(model, weights)
    if ids and weights not in found:
        found[weights] = perplexity(model, ids)
    if not ids:
        return None
    if not complete:
        keep_perplexities(source.weights_digest, found)
    return Perplexities(weights, found[PLAIN], found[weights])


def perplexity(model: Any, ids: list[int]) -> float:
    """The exponential of the mean surprise of every token but the first, in one plain forward."""
    tokens = torch.tensor([ids])
    with torch.inference_mode():
        logits = model(input_ids=tokens, use_cache=False).logits[0, :-1]  # (n - 1, vocab)
        parts = zip(logits.split(_ROWS), tokens[0, 1:].split(_ROWS), strict=True)
        surprise = sum(float(cross_entropy(rows.float(), wanted, reduction="sum")) for rows, wanted in parts)
    return math.exp(min(surprise / (len(ids) - 1), 700.0))  # above that a float ends


def _ids(source: ModelFolder, vocabulary: int) -> list[int]:
    try:
        tokenizer = Tokenizer.from_folder(source)
    except RuntimeFault:  # loading the model for texts says so
        return []
    begin = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    ids = [*begin, *tokenizer.encode(TEXT)][:MOST_TOKENS]
    return ids if len(ids) > 1 and max(ids) < vocabulary else []
