"""Rope scaling of a GGUF as transformers' ``rope_parameters``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from runtime.loading.gguf.header import GgufHeader, fault, positive_number, whole_number

FACTORS = "rope_freqs.weight"  # Llama 3's divisors of the frequencies
MAX_CONTEXT = 1 << 27

# Parameters of Llama 3.1 to 3.3. A GGUF file does not have them; its divisors must equal those computed from them.
_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
_UNKNOWN = ("yarn_ext_factor", "yarn_attn_factor", "attn_factor", "yarn_log_multiplier")  # of yarn; not in config.json


def rope_parameters(header: GgufHeader, theta: float, rotated: int) -> dict[str, Any]:
    """The ``rope_parameters`` of a config.json.

    Raises:
        ModelLoadError: The kind of scaling is not supported, or numbers are missing.
    """
    prefix = f"{header.architecture}.rope."
    stretched = header.metadata.get(f"{prefix}scaling.factor", 0) not in (0, 1)
    kind = header.metadata.get(f"{prefix}scaling.type", "linear" if stretched else "none")
    plain = {"rope_type": "default", "rope_theta": theta}
    if f"{prefix}scale_linear" in header.metadata:
        raise fault(header, f"{prefix}scale_linear is of an older kind of file: not supported; use a newer conversion")
    if FACTORS in header.tensors:
        if kind != "none":
            raise fault(header, f"both {FACTORS} and rope scaling of the kind {kind!r}: not supported")
        return _llama3(header, plain, rotated)
    if kind == "none":
        return plain
    if kind == "linear":
        return {**plain, "rope_type": "linear", "factor": positive_number(header, f"{prefix}scaling.factor")}
    if kind == "yarn":
        return _yarn(header, plain, f"{prefix}scaling.")
    raise fault(header, f"rope scaling of the kind {str(kind)[:40]!r} in a GGUF is not supported; use the model's own folder")


def _yarn(header: GgufHeader, plain: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    unknown = next((key for key in _UNKNOWN if f"{prefix}{key}" in header.metadata), None)
    if unknown is not None:
        raise fault(header, f"{prefix}{unknown} is not supported; use the model's own folder")
    return {
        **plain,
        "rope_type": "yarn",
        "factor": positive_number(header, f"{prefix}factor"),
        "original_max_position_embeddings": whole_number(header, f"{prefix}original_context_length", MAX_CONTEXT),
        "beta_fast": positive_number(header, f"{prefix}yarn_beta_fast", 32.0),
        "beta_slow": positive_number(header, f"{prefix}yarn_beta_slow", 1.0),
    }


def _llama3(header: GgufHeader, plain: Mapping[str, Any], rotated: int) -> dict[str, Any]:
    info = header.tensors[FACTORS]
    if header.architecture != "llama" or info.format.name != "F32" or info.shape != (rotated / 2,):
        raise fault(header, f"the tensor {FACTORS} is {info.format.name} {info.shape}, no Llama 3's: not supported")
    found = np.fromfile(header.path, "<f4", info.values, offset=info.offset)
    if (found == 1).all():
        return dict(plain)
    factor = float(found.max())
    scaling = {**_LLAMA3, "factor": float(str(np.float32(factor)))}
    if not factor > 1 or not np.allclose(found, _divisors(plain["rope_theta"], rotated, scaling), rtol=1e-5, atol=0):
        raise fault(
            header, f"the tensor {FACTORS} holds other factors than Llama 3's: not supported; use the model's own folder"
        )
    return {**plain, "rope_type": "llama3", **scaling}


def _divisors(theta: float, rotated: int, scaling: Mapping[str, float]) -> npt.NDArray[np.float64]:
    """Llama 3's divisors, ``(rotated / 2,)``: 1 for fast frequencies, `factor` for slow ones."""
    waves = 2 * math.pi * theta ** (np.arange(0, rotated, 2) / rotated)  # tokens per turn
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    smooth = np.clip((scaling["original_max_position_embeddings"] / waves - low) / (high - low), 0, 1)
    result: npt.NDArray[np.float64] = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    return result
