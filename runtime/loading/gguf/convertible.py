"""Which GGUF files can be turned into a model folder: told from the header alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import ModelLoadError
from runtime.loading.gguf.decoder import DecoderShape, Tensor, check_tensors
from runtime.loading.gguf.dequantise import UNPACKERS
from runtime.loading.gguf.families import FAMILIES, WORKS
from runtime.loading.gguf.header import read_header
from runtime.loading.gguf.layout import GgufHeader
from runtime.loading.gguf.writing import kept_bits, parts_of


@dataclass(frozen=True, slots=True)
class Checked:
    """A file that can be converted, as far as its header tells."""

    header: GgufHeader
    shape: DecoderShape
    tensors: list[Tensor]

    @property
    def parameters(self) -> int:
        """Numbers in all."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def keepable(self) -> bool:
        """Whether MLX can keep any of its tensors as it is packed."""
        return any(kept_bits(self.header, tensor) for tensor in self.tensors)

    def written_bytes(self, *, quantised: bool) -> int:
        """Size of the weights once converted."""
        return sum(part.nbytes for tensor in self.tensors for part in parts_of(self.header, tensor, quantised=quantised))


def check(path: Path) -> Checked:
    """Everything that can be refused before work begins.

    Raises:
        ModelLoadError: Damaged, or of a kind that cannot be converted.
    """
    header = read_header(path)
    if header.architecture not in FAMILIES:
        raise ModelLoadError(f"{path}: the architecture {header.architecture!r} cannot be imported from GGUF; {WORKS} can")
    shape = DecoderShape.of(header)
    tensors = check_tensors(header, shape)
    for tensor in tensors:
        kind = header.tensors[tensor.source].format.name
        if kind not in UNPACKERS:
            raise ModelLoadError(f"{path}: {tensor.source} is packed as {kind}; a file in {', '.join(UNPACKERS)} can be read")
    return Checked(header, shape, tensors)
