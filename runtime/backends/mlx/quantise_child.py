"""Quantises a plain model folder: ``python -m runtime.backends.mlx.quantise_child FOLDER TARGET BITS GROUP``.

Uses the functions of mlx_lm's own conversion, which also prints, copies every .py file and looks for a model card. Writes one
JSON object a line to standard output: ``{"done", "total"}`` in bytes while it works, ``{"parameters"}`` at the end,
``{"error"}`` if it fails. Ends when its standard input closes, so that it never outlives its parent process.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from mlx_lm.utils import get_total_parameters, quantize_model, save_config, save_model
from mlx_lm.utils import load_model as load_mlx_model

from runtime.backends.mlx.corrections import class_lookup, corrected_config
from runtime.backends.mlx.loading import flat_parameters
from runtime.errors import ModelLoadError, RuntimeFault
from runtime.loading.child_process import end_with_parent, write_message
from runtime.loading.integrity import sync_all
from runtime.loading.model_folder import open_folder

_BASE_MEMORY = 8 << 30  # bytes of address space: interpreter, libraries, threads, and room
_COPIES = 3  # of the weights, in address space: mapped files, quantised arrays, and room


def quantise(source: Path, target: Path, bits: int, group: int, report: Callable[[int, int], None]) -> int:
    """Writes weights and config into `target`, durably.

    Args:
        source: A checked, plain folder.
        target: An empty folder.
        bits: Number of bits of a weight.
        group: Number of weights that share a step.
        report: Called with the bytes of quantised weights so far, and of all.

    Returns:
        The number of parameters.

    Raises:
        ModelLoadError: mlx_lm cannot load it, or no layer is as wide as a group.
    """
    folder = open_folder(source, backend="mlx")
    try:
        config = corrected_config(folder)
        model, config = load_mlx_model(source, model_config=config, lazy=True, **class_lookup(config))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelLoadError(f"{source}: mlx_lm cannot load it: {error}") from error
    parameters = int(get_total_parameters(model))
    model, config = quantize_model(model, config, group, bits)
    weights = flat_parameters(model)
    if not any(name.endswith(".scales") for name, _ in weights):
        raise ModelLoadError(f"{source}: no layer is a multiple of {group} weights wide, so none can be quantised")
    total, done = sum(int(array.nbytes) for _, array in weights), 0
    for _, array in weights:  # lazy until now: each is read, quantised and freed by itself
        report(done, total)
        mx.eval(array)
        done += int(array.nbytes)
    try:
        save_model(target, model, donate_model=True)
        save_config(config, config_path=target / "config.json")
        sync_all(target)
    except (OSError, RuntimeError) as fault:  # mlx raises RuntimeError if a file cannot be written
        raise ModelLoadError(f"{target}: cannot be written ({fault}); free some space or choose another folder") from fault
    report(total, total)
    return parameters


def main() -> int:
    """Runs the child; returns its exit status: 0 done, 1 refused."""
    parser = argparse.ArgumentParser(description="Quantise a model folder for mlx.")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("bits", type=int)
    parser.add_argument("group", type=int)
    arguments = parser.parse_args()
    end_with_parent()
    os.umask(0o077)
    _limit_memory(arguments.source)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # mlx_lm prints
            parameters = quantise(
                arguments.source, arguments.target, arguments.bits, arguments.group, lambda d, t: write_message(done=d, total=t)
            )
    except RuntimeFault as fault:
        write_message(error=str(fault))
        return 1
    except MemoryError:
        write_message(error=f"{arguments.source}: quantising it needs more memory than is allowed")
        return 1
    except (OSError, RuntimeError) as fault:
        write_message(error=f"{arguments.source}: cannot be quantised ({fault})")
        return 1
    write_message(parameters=parameters)
    return 0


def _limit_memory(source: Path) -> None:
    """Limits this process's address space; macOS does not enforce it, so it is not limited there."""
    if sys.platform != "darwin":
        limit = _BASE_MEMORY + _COPIES * sum(file.stat().st_size for file in source.glob("*.safetensors"))
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


if __name__ == "__main__":
    sys.exit(main())
