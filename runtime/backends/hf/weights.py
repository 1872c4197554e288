"""Weights of linear modules in fewer bits, on a CPU, with torch's own kernels; inputs and outputs stay float32.

A token of one stream reads every weight once, so fewer bytes take less time. float16 multiplies with float32 activations
(FBGEMM, x86 only). bfloat16, int8 and int4 round activations to bfloat16, the only dtype that their kernels are vectorised
for. The head stays in float16 under int8 and int4 (in float32 where there is no FBGEMM): logits
rounded to bfloat16 would tie.

Weights of a folder in MLX's form are used as stored: numbers of 2 to 8 bits in words, a scale and a bias for each group.
transformers reads the tensors into its own model, one by one, without a float32 copy. A product converts a block of rows to
float32 at a time, so weights equal those of the float32 import bit for bit.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy, linear
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from runtime.backends import facts
from runtime.backends.packs.packed import RETURN_BYTES
from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.gguf.quants import Form
from runtime.loading.measurements import MOST_TOKENS, PLAIN, TEXT, Perplexities, keep_perplexities, kept_perplexities
from runtime.loading.model_folder import ModelFolder
from runtime.loading.safetensors import tensor_forms
from runtime.memory import return_memory
from runtime.options.load import LoadOptions
from runtime.text.tokenizer import Tokenizer

GROUP = 32  # weights of a row that share a step and a middle in int4
INNER_K = 2  # how torch's int4 packing interleaves; its CPU kernel takes any
MANY_ROWS = 32  # from here on torch's int8 kernel is slower than converting the weights to bfloat16 first
METHOD: Final = "elsewise-affine"  # transformers' quantisation method for a folder in MLX's form
BLOCK: Final = 1 << 20  # of its weights in float32 at once: 4 MiB
_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (16, 32)


class PackedLinear(torch.nn.Module, ABC):  # type: ignore[misc]  # torch is not followed by mypy
    """A linear module whose weights are in a kernel's own format.

    Attributes:
        in_features: Width of the input.
        out_features: Width of the output.
        weight: Shape and dtype without data (on the device "meta"), for code that reads the dtype of a head.
        nbytes: Bytes of the weights.
    """

    nbytes: int

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = torch.empty(weight.shape, device="meta")
        self.bias = bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """``(..., in) float32`` to ``(..., out) float32``; on the device "meta", only the shape."""
        if x.is_meta:
            return x.new_empty(*x.shape[:-1], self.out_features)
        y = self.product(x.reshape(-1, self.in_features).contiguous()).view(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias

    @abstractmethod
    def product(self, x: torch.Tensor) -> torch.Tensor:
        """``(rows, in)`` to ``(rows, out) float32``, without the bias."""


class Float16Linear(PackedLinear):
    """Weights in float16, half the bytes of float32; sums are float32."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, None)
        self.nbytes = 2 * weight.numel()

    def product(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return y


class Bfloat16Linear(PackedLinear):
    """Weights in bfloat16, half the bytes of float32; activations are rounded to bfloat16 too."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._packed = weight.bfloat16()
        self.nbytes = self._packed.nbytes

    def product(self, x: torch.Tensor) -> torch.Tensor:
        return linear(x.bfloat16(), self._packed).float()


class Int8Linear(PackedLinear):
    """One byte per weight, one float32 step per row; symmetric."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        self._steps = (weight.abs().amax(1) / 127).clamp_min(torch.finfo(torch.float32).tiny)  # (out,)
        self._packed = (weight / self._steps[:, None]).round().to(torch.int8)
        self.nbytes = self._packed.nbytes + self._steps.nbytes
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
            y = linear(rows, self._packed.bfloat16())  # exact: bfloat16 has eight bits of precision
        return y.float() * self._steps


class Int4Linear(PackedLinear):
    """Half a byte per weight; a step and a middle in bfloat16 for every 32 weights of a row."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, bias)
        groups = weight.view(len(weight), -1, GROUP)  # (out, groups, 32)
        low, high = groups.amin(-1), groups.amax(-1)
        steps = ((high - low) / 15).clamp_min(1e-8).bfloat16().float()  # rounded as in the kernel
        middles = (low + 8 * steps).bfloat16().float()
        quantised = ((groups - middles[..., None]) / steps[..., None] + 8).round().clamp(0, 15)
        whole = quantised.view_as(weight).to(torch.int32)
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole, INNER_K)  # noqa: SLF001  # its only name
        self._scales = torch.stack([steps, middles], -1).transpose(0, 1).contiguous().bfloat16()  # (groups, out, 2)
        self.nbytes = self._packed.nbytes + self._scales.nbytes

    @staticmethod
    def takes(weight: torch.Tensor) -> bool:
        """Whether torch's kernel can multiply a matrix of this shape."""
        return bool(weight.shape[1] % GROUP == 0 and weight.shape[0] % 16 == 0)

    def product(self, x: torch.Tensor) -> torch.Tensor:
        multiply = torch.ops.aten._weight_int4pack_mm_for_cpu  # noqa: SLF001  # its only name
        y: torch.Tensor = multiply(x.bfloat16(), self._packed, GROUP, self._scales)
        return y.float()


def check_weights(
    options: LoadOptions, device: torch.device, *, ready: bool = False, quantised: bool = False
) -> tuple[str, ...]:
    """Checks that the weights can have the form of the option `weights`.

    Args:
        options: The load options.
        device: The device that computes.
        ready: Whether the model is a ready one of the caller's.
        quantised: Whether its folder is quantised.

    Returns:
        A warning, where they cannot and the option was set for all models; else nothing.

    Raises:
        UnsupportedFeatureError: They cannot; the message names the alternative.
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
    return (facts.ignored_option(options, "weights", f"weights={weights!r} {why}"),) if why else ()


def has_float16() -> bool:
    """Whether torch can multiply float16 weights with float32 activations here."""
    return torch.backends.quantized.engine in ("x86", "fbgemm")


def pack_weights(model: Any, weights: str) -> None:
    """Replaces the linear modules of a float32 model on the CPU, one after the other.

    Modules that a forward never calls stay: state-space code reads some weights without calling their module. Frees the
    mapped files of the weights, and returns the memory that packing took to the system.

    Args:
        model: A transformers model.
        weights: "float16", "bfloat16", "int8" or "int4".
    """
    head, freed = model.get_output_embeddings(), 0
    for path, module in _called(model).items():
        matrix = module.weight.detach().T if isinstance(module, Conv1D) else module.weight.detach()
        kind = kind_for(weights, matrix, head=module is head)
        if kind is None:
            continue
        packed = kind(matrix.contiguous(), None if module.bias is None else module.bias.detach().clone())
        model.set_submodule(path, packed.eval())
        freed += matrix.nbytes
        if freed >= RETURN_BYTES:
            return_memory()
            freed = 0
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.clone()  # else it keeps the whole file mapped
    return_memory()


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


def kind_for(weights: str, matrix: torch.Tensor, *, head: bool) -> type[PackedLinear] | None:
    """The module for a matrix; float16, or None, where the requested form has no kernel for it."""
    if weights == "bfloat16" and not head:
        return Bfloat16Linear
    if weights == "int8" and not head and Int8Linear.takes(matrix):
        return Int8Linear
    if weights == "int4" and not head and Int4Linear.takes(matrix):
        return Int4Linear
    return Float16Linear if has_float16() else None


_ROWS = 32  # of logits that are copied to float32 at once


def pack_and_measure(model: Any, source: ModelFolder, weights: str) -> Perplexities | None:
    """Packs a float32 model's linear weights; returns its perplexity before and after, measured or as saved earlier.

    Args:
        model: On the CPU.
        source: Its folder, for the tokenizer.
        weights: See `pack_weights`.

    Returns:
        None where the model does not know the tokens of the text.
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
    return math.exp(min(surprise / (len(ids) - 1), 700.0))  # a float overflows above that


def _ids(source: ModelFolder, vocabulary: int) -> list[int]:
    try:
        tokenizer = Tokenizer.from_folder(source)
    except RuntimeFault:  # reported when the tokenizer is loaded
        return []
    begin = [tokenizer.bos_token_id] if tokenizer.adds_bos and tokenizer.bos_token_id is not None else []
    ids = [*begin, *tokenizer.encode(TEXT)][:MOST_TOKENS]
    return ids if len(ids) > 1 and max(ids) < vocabulary else []


# ---- weights that stay as a folder in MLX's form has them ----


class AffineMatrix(NamedTuple):
    """A matrix, ``scale * number + bias``, groups along its rows.

    Attributes:
        words: ``(out, in * bits / 32) uint32``, numbers packed from the lowest bit on.
        scales: ``(out, in / group) float32``.
        biases: The same shape.
        group: Numbers that share a scale and a bias.
    """

    words: torch.Tensor
    scales: torch.Tensor
    biases: torch.Tensor
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the matrix."""
        return len(self.scales), self.scales.shape[1] * self.group

    @property
    def nbytes(self) -> int:
        return int(self.words.nbytes + self.scales.nbytes + self.biases.nbytes)

    def rows(self, which: slice | torch.Tensor) -> torch.Tensor:
        """``(rows, in) float32``."""
        scales, biases = self.scales[which, :, None], self.biases[which, :, None]
        bits = self.words.shape[1] * 32 // self.shape[1]
        period = 8 // math.gcd(8, bits)  # numbers that fill whole bytes
        data = self.words.view(torch.uint8)[which].view(scales.shape[0], -1, period * bits // 8)
        data = data.movedim(2, 0).contiguous()  # first bytes, second bytes, ...: reading 6 bits takes two thirds
        numbers = torch.empty(*data.shape[1:], period)
        for i in range(period):
            byte, shift = divmod(i * bits, 8)
            number = data[byte] >> shift
            if shift + bits > 8:
                number |= data[byte + 1] << (8 - shift)
            numbers[..., i] = number if shift + bits == 8 else number & (1 << bits) - 1
        return numbers.view(scales.shape[0], -1, self.group).mul_(scales).add_(biases).view(scales.shape[0], -1)


class AffineLinear(PackedLinear):
    """Multiplies by its `matrix`, block by block."""

    def __init__(self, matrix: AffineMatrix, bias: torch.Tensor | None) -> None:
        super().__init__(torch.empty(matrix.shape, device="meta"), bias)
        self.matrix, self.nbytes = matrix, matrix.nbytes

    def product(self, x: torch.Tensor) -> torch.Tensor:
        step = max(BLOCK // self.in_features, 1)
        starts = range(0, self.out_features, step)
        return torch.cat([x @ self.matrix.rows(slice(start, start + step)).T for start in starts], 1)


class AffineEmbedding(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """An embedding that converts looked-up rows to float32, within the forward of the model's own class.

    Attributes:
        matrix: The weights.
        weight: Shape and dtype without data.
    """

    def __init__(self, matrix: AffineMatrix, own: torch.nn.Embedding) -> None:
        super().__init__()
        self.matrix = matrix
        self.weight = torch.empty(matrix.shape, device="meta")
        own.weight = torch.nn.Parameter(self.weight, requires_grad=False)
        own.padding_idx = None  # used only in training; not an index of the looked-up rows
        self._own = (own,)  # not a child, as its parameters have no data

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``(...) int`` to ``(..., width) float32``."""
        rows = self.matrix.rows(ids.flatten())
        places = torch.arange(len(rows)).view(ids.shape)
        y: torch.Tensor = functional_call(self._own[0], {"weight": rows}, (places,))
        return y


@register_quantization_config(METHOD)
class AffineConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """Quantisation of a folder in MLX's form, for `from_pretrained`.

    Attributes:
        forms: The quantised form of each layer, by the layer's name.
        check: Refuses a tensor by name unless it has this dtype and shape.
    """

    def __init__(self, forms: Mapping[str, Form], check: Callable[[str, str, tuple[int, ...]], None]) -> None:
        self.quant_method = METHOD
        self.forms = dict(forms)
        self.check = check


@register_quantizer(METHOD)
class AffineQuantizer(HfQuantizer):  # type: ignore[misc]  # likewise
    """Adds the file's tensors to layers of the empty model; `replace_quantised` replaces these layers after the load."""

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> Any:
        for path, form in self.quantization_config.forms.items():
            module = model.get_submodule(path)
            rows, columns = module.weight.shape
            parts = {"weight": (columns * form.bits // 32, torch.uint32), "scales": (columns // form.group, torch.float32)}
            parts["biases"] = parts["scales"]
            for name, (width, dtype) in parts.items():
                self.quantization_config.check(f"{path}.{name}", "U32" if name == "weight" else "F32", (rows, width))
                empty = torch.empty(rows, width, dtype=dtype, device="meta")
                module.register_parameter(name, torch.nn.Parameter(empty, requires_grad=False))
        return model

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> Any:
        self.remove_quantization_config(model)
        return model


def quantization_of(source: ModelFolder) -> AffineConfig | None:
    """The configuration by which transformers reads a folder in MLX's form; None for plain weights.

    Raises:
        ModelLoadError: config.json does not describe that form.
    """
    found = source.config.get("quantization")
    if source.quantisation is None or not isinstance(found, Mapping):
        return None
    layers, tensors = {}, tensor_forms(source.weights)

    def check(name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if tensors.get(name) != (dtype, shape):
            there = "missing" if name not in tensors else " ".join(map(str, tensors[name]))
            raise ModelLoadError(
                f"{source.path}: the tensor {name} is {there} in the weights and {dtype} {shape} by config.json; import the "
                "file again"
            )

    for layer in (name.removesuffix(".scales") for name in tensors if name.endswith(".scales")):
        own = found.get(layer, found)
        if not isinstance(own, Mapping) or own.get("bits") not in _BITS or own.get("group_size") not in _GROUPS:
            raise ModelLoadError(f"{source.path}/config.json: quantization says no bits and groups of 16 or 32 for {layer}")
        layers[layer] = Form(own["bits"], own["group_size"])
    return AffineConfig(layers, check)


def replace_quantised(model: Any, config: AffineConfig) -> None:
    """Replaces the layers that were read by `AffineLinear` and `AffineEmbedding`, also a head that shares its matrix."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    for path, form in config.forms.items():
        module = model.get_submodule(path)
        matrix = AffineMatrix(module.weight.data, module.scales.data, module.biases.data, form.group)
        if not isinstance(module, torch.nn.Embedding):
            model.set_submodule(path, AffineLinear(matrix, None if module.bias is None else module.bias.data).eval())
            continue
        if module is embedding and tied:
            model.set_output_embeddings(AffineLinear(matrix, None).eval())
        del module.scales, module.biases
        model.set_submodule(path, AffineEmbedding(matrix, module).eval())
