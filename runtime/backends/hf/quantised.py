"""Weights that stay as a folder in MLX's form has them: numbers of 2 to 8 bits in words, a scale and a bias for each group.

transformers reads the tensors into its own model, one by one, without a float32 copy of any. A product makes float32 of a block
of rows at a time, so weights are to the bit those of the float32 import. On a processor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd
from typing import Any, Final, NamedTuple

import torch
from torch.func import functional_call
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from runtime.backends.hf.weights import PackedLinear
from runtime.errors import ModelLoadError
from runtime.loading.gguf.quants import Form
from runtime.loading.model_folder import ModelFolder
from runtime.loading.safetensors import tensor_forms

METHOD: Final = "elsewise-affine"
BLOCK: Final = 1 << 20  # weights that are float32 at once: 4 MiB
_BITS, _GROUPS = (2, 3, 4, 5, 6, 8), (16, 32)


class Affine(NamedTuple):
    """A matrix, ``scale * number + bias``, groups along its rows.

    Attributes:
        words: ``(out, in * bits / 32) uint32``, numbers one behind the other from the lowest bit on.
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
        """Bytes of all parts."""
        return int(self.words.nbytes + self.scales.nbytes + self.biases.nbytes)

    def rows(self, which: slice | torch.Tensor) -> torch.Tensor:
        """``(rows, in) float32``."""
        scales, biases = self.scales[which, :, None], self.biases[which, :, None]
        bits = self.words.shape[1] * 32 // self.shape[1]
        period = 8 // gcd(8, bits)  # so many numbers fill whole bytes
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

    def __init__(self, matrix: Affine, bias: torch.Tensor | None) -> None:
        super().__init__(torch.empty(matrix.shape, device="meta"), bias)
        self.matrix = matrix

    def product(self, x: torch.Tensor) -> torch.Tensor:
        step = max(BLOCK // self.in_features, 1)
        starts = range(0, self.out_features, step)
        return torch.cat([x @ self.matrix.rows(slice(start, start + step)).T for start in starts], 1)

    @property
    def nbytes(self) -> int:
        return self.matrix.nbytes


class AffineEmbedding(torch.nn.Module):  # type: ignore[misc]  # torch is not followed by mypy
    """An embedding of which the rows looked up become float32; what the model's own class adds to a lookup stays.

    Attributes:
        matrix: The weights.
        weight: Shape and dtype without numbers.
    """

    def __init__(self, matrix: Affine, own: torch.nn.Embedding) -> None:
        super().__init__()
        self.matrix = matrix
        self.weight = torch.empty(matrix.shape, device="meta")
        own.weight = torch.nn.Parameter(self.weight, requires_grad=False)
        own.padding_idx = None  # of training; no row of those looked up
        self._own = (own,)  # no child: its parameters have no numbers

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """``(...) int`` to ``(..., width) float32``."""
        rows = self.matrix.rows(ids.flatten())
        places = torch.arange(len(rows)).view(ids.shape)
        y: torch.Tensor = functional_call(self._own[0], {"weight": rows}, (places,))
        return y


@register_quantization_config(METHOD)
class AffineConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers is not followed by mypy
    """For `from_pretrained`.

    Attributes:
        forms: By layer.
        check: Refuses a tensor that is not of a dtype and shape.
    """

    def __init__(self, forms: Mapping[str, Form], check: Callable[[str, str, tuple[int, ...]], None]) -> None:
        self.quant_method = METHOD
        self.forms = dict(forms)
        self.check = check


@register_quantizer(METHOD)
class AffineQuantizer(HfQuantizer):  # type: ignore[misc]  # likewise
    """Gives layers of the empty model the tensors of the file, and puts ours in their place once these are read."""

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
    """How transformers is to read a folder in MLX's form; None for plain weights.

    Raises:
        ModelLoadError: config.json describes no such form.
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
    """Puts `AffineLinear` and `AffineEmbedding` in place of what was read, and of a head that shares its matrix."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    for path, form in config.forms.items():
        module = model.get_submodule(path)
        matrix = Affine(module.weight.data, module.scales.data, module.biases.data, form.group)
        if not isinstance(module, torch.nn.Embedding):
            _put(model, path, AffineLinear(matrix, None if module.bias is None else module.bias.data))
            continue
        if module is embedding and tied:
            model.set_output_embeddings(AffineLinear(matrix, None).eval())
        del module.scales, module.biases
        _put(model, path, AffineEmbedding(matrix, module))


def _put(model: Any, path: str, module: torch.nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module.eval())
