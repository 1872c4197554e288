"""What GGUF files are made of: value types, tensor formats, and the values a checked header hands out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# value types and their struct codes
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
BOOL, STRING, ARRAY = 7, 8, 9


@dataclass(frozen=True, slots=True)
class TensorFormat:
    """How a tensor's values are packed: `block` values in `size` bytes."""

    name: str
    block: int
    size: int


# ggml's type numbers; those that are missing were removed from ggml or never stood in files
FORMATS: Mapping[int, TensorFormat] = {
    0: TensorFormat("F32", 1, 4),
    1: TensorFormat("F16", 1, 2),
    2: TensorFormat("Q4_0", 32, 18),
    3: TensorFormat("Q4_1", 32, 20),
    6: TensorFormat("Q5_0", 32, 22),
    7: TensorFormat("Q5_1", 32, 24),
    8: TensorFormat("Q8_0", 32, 34),
    9: TensorFormat("Q8_1", 32, 36),
    10: TensorFormat("Q2_K", 256, 84),
    11: TensorFormat("Q3_K", 256, 110),
    12: TensorFormat("Q4_K", 256, 144),
    13: TensorFormat("Q5_K", 256, 176),
    14: TensorFormat("Q6_K", 256, 210),
    15: TensorFormat("Q8_K", 256, 292),
    16: TensorFormat("IQ2_XXS", 256, 66),
    17: TensorFormat("IQ2_XS", 256, 74),
    18: TensorFormat("IQ3_XXS", 256, 98),
    19: TensorFormat("IQ1_S", 256, 50),
    20: TensorFormat("IQ4_NL", 32, 18),
    21: TensorFormat("IQ3_S", 256, 110),
    22: TensorFormat("IQ2_S", 256, 82),
    23: TensorFormat("IQ4_XS", 256, 136),
    24: TensorFormat("I8", 1, 1),
    25: TensorFormat("I16", 1, 2),
    26: TensorFormat("I32", 1, 4),
    27: TensorFormat("I64", 1, 8),
    28: TensorFormat("F64", 1, 8),
    29: TensorFormat("IQ1_M", 256, 56),
    30: TensorFormat("BF16", 1, 2),
    34: TensorFormat("TQ1_0", 256, 54),
    35: TensorFormat("TQ2_0", 256, 66),
}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a checked file."""

    name: str
    shape: tuple[int, ...]  # as numpy has it, rows first: the reverse of ggml's order
    format: TensorFormat
    offset: int  # bytes from the start of the file

    @property
    def values(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return self.values // self.format.block * self.format.size


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Everything a checked GGUF file says before its weights."""

    path: Path
    version: int
    metadata: Mapping[str, Any]
    tensors: Mapping[str, TensorInfo]
    data_start: int  # bytes
    file_bytes: int

    @property
    def architecture(self) -> str:
        """The file's ``general.architecture``."""
        return str(self.metadata.get("general.architecture", ""))
