"""GGUF to a model folder, run as a child process: ``python -m runtime.loading.gguf.convert FILE FOLDER [--keep-quantised]``.

Weights become float32, or stay quantised in MLX's form, one tensor at a time. On standard output, one JSON object a line:
``{"done", "total"}`` as progress, then ``{"parameters"}`` or ``{"error"}``. The process ends when its standard input closes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.child_process import end_with_parent, write_message
from runtime.loading.gguf.decoder import FAMILIES, WORKS, DecoderShape, Tensor, check_tensors
from runtime.loading.gguf.header import GgufHeader, read_header
from runtime.loading.gguf.quants import READABLE
from runtime.loading.gguf.tokenizer import build_tokenizer, chat_template, generation_config, tokenizer_config
from runtime.loading.gguf.weights import kept_form, parts_of, quantization_of, sync, write_weights

BASE_MEMORY = 4 << 30  # bytes of address space: interpreter, numpy, tokenizer, and room


@dataclass(frozen=True, slots=True)
class CheckedGguf:
    """The checked header of a file that can be converted."""

    header: GgufHeader
    shape: DecoderShape
    tensors: list[Tensor]

    @property
    def parameters(self) -> int:
        """Count of numbers in all tensors."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors)

    @property
    def keepable(self) -> bool:
        return any(kept_form(self.header, tensor) for tensor in self.tensors)

    def written_bytes(self, *, quantised: bool) -> int:
        return sum(part.nbytes for tensor in self.tensors for part in parts_of(self.header, tensor, quantised=quantised))


def check_gguf(path: Path) -> CheckedGguf:
    """Reads a file's header and refuses a file that cannot be converted.

    Raises:
        ModelLoadError: The file is damaged, or of a kind that cannot be converted.
    """
    header = read_header(path)
    if header.architecture not in FAMILIES:
        raise ModelLoadError(f"{path}: the architecture {header.architecture!r} cannot be imported from GGUF; {WORKS} can")
    shape = DecoderShape.of(header)
    tensors = check_tensors(header, shape)
    for tensor in tensors:
        kind = header.tensors[tensor.source].format.name
        if kind not in READABLE:
            raise ModelLoadError(f"{path}: {tensor.source} is packed as {kind}; a file in {', '.join(READABLE)} can be read")
    return CheckedGguf(header, shape, tensors)


def convert(checked: CheckedGguf, target: Path, report: Callable[[int, int], None], *, quantised: bool = False) -> int:
    """Writes the model folder's files into `target`, durably.

    Args:
        checked: From `check_gguf`.
        target: An empty folder.
        report: Called with the bytes of weights written so far, and in all.
        quantised: Whether quantised matrices stay so; all else becomes float32.

    Returns:
        The number of parameters.

    Raises:
        ModelLoadError: The tokenizer's lists contradict each other, or weights are NaN or infinity.
    """
    header = checked.header
    tokenizer = build_tokenizer(header)
    _write_text(target / "tokenizer.json", tokenizer.to_str())
    _write_json(target / "tokenizer_config.json", tokenizer_config(header))
    _write_json(target / "generation_config.json", generation_config(header))
    config = {**checked.shape.config(), **generation_config(header)}
    if quantised:
        config["quantization"] = quantization_of(header, checked.tensors)
    _write_json(target / "config.json", config)
    template = chat_template(header)
    if template is not None:
        _write_text(target / "chat_template.jinja", template)
    write_weights(target / "model.safetensors", header, checked.tensors, report, quantised=quantised)
    return checked.parameters


def _limit_memory(header: GgufHeader) -> None:
    """Limits this process to the mapped file and a few copies of the largest tensor."""
    if sys.platform != "darwin":  # macOS accepts the call and does not enforce it
        largest = max(info.values for info in header.tensors.values()) * 4
        limit = BASE_MEMORY + header.file_bytes + 4 * largest
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _write_json(path: Path, value: Any) -> None:
    _write_text(path, json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def _write_text(path: Path, text: str) -> None:
    with path.open("wb") as stream:
        stream.write(text.encode())
        sync(stream)


def main() -> int:
    """Exit code 0: converted; 1: refused."""
    parser = argparse.ArgumentParser(description="Convert a GGUF file into a model folder.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--keep-quantised", action="store_true")
    arguments = parser.parse_args()
    end_with_parent()
    os.umask(0o077)
    try:
        checked = check_gguf(arguments.source)
        _limit_memory(checked.header)
        parameters = convert(
            checked,
            arguments.target,
            lambda done, total: write_message(done=done, total=total),
            quantised=arguments.keep_quantised,
        )
    except RuntimeFault as fault:
        write_message(error=str(fault))
        return 1
    except MemoryError:
        write_message(error=f"{arguments.source}: converting it needs more memory than is allowed")
        return 1
    except OSError as fault:
        write_message(
            error=f"{arguments.target}: cannot be written ({fault.strerror}); free some space or choose another folder"
        )
        return 1
    write_message(parameters=parameters)
    return 0


if __name__ == "__main__":
    sys.exit(main())
