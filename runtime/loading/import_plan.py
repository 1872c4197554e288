"""What taking in a GGUF file means, told from its header alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from runtime.backends.registry import default_backend
from runtime.errors import ModelLoadError
from runtime.loading.gguf.convertible import Checked, check
from runtime.loading.gguf.writing import kept_bits


@dataclass(frozen=True, slots=True)
class ImportPlan:
    """The two forms that a file's weights can be given.

    Attributes:
        kept: Bytes of the weights where they stay quantised, for mlx alone; 0 where MLX can keep none of them.
        float32: Bytes of the weights as float32, for both engines.
        keeps: They stay quantised unless somebody says otherwise: what runs models here is mlx.
        widened: Of all numbers, the share in matrices that are packed in a form MLX has none for, by that form's name: float32
            in either case.
    """

    kept: int
    float32: int
    keeps: bool
    widened: Mapping[str, float]

    @property
    def note(self) -> str:
        """What does not stay quantised although the file has it so, and why; empty where all does."""
        shares = " and ".join(f"{form} ({100 * share:.0f} % of the weights)" for form, share in self.widened.items())
        return f"{shares} becomes float32: MLX has no form that is exactly it" if self.kept and shares else ""


def plan_import(path: str | Path) -> ImportPlan:
    """Reads the header of a GGUF file, and nothing else. Blocks, below a second.

    Raises:
        ModelLoadError: It is not there, damaged, or of a kind that cannot be converted.
    """
    source = Path(path).expanduser().absolute()
    if not source.is_file():
        raise ModelLoadError(f"{source}: no such file")
    return plan_of(check(source))


def plan_of(checked: Checked) -> ImportPlan:
    """Of a file that was checked."""
    numbers: Counter[str] = Counter()
    for tensor in checked.tensors:
        packed = checked.header.tensors[tensor.source].format
        if packed.block > 1 and len(tensor.shape) == 2 and kept_bits(checked.header, tensor) is None:
            numbers[packed.name] += prod(tensor.shape)
    return ImportPlan(
        kept=checked.written_bytes(quantised=True) if checked.keepable else 0,
        float32=checked.written_bytes(quantised=False),
        keeps=checked.keepable and default_backend() == "mlx",
        widened={name: count / checked.parameters for name, count in sorted(numbers.items())},
    )
