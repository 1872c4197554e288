"""Writes the table of `docs/architectures.md`: the result of the load-time self-test for each architecture of transformers.

Each has transformers' own default configuration, made small as at load. `python -m tests.tools.architectures [ARCHITECTURE...]`
"""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from runtime.backends import facts
from runtime.backends.hf.backend import HfBackend
from runtime.backends.hf.loading import LoadedModel, random_copy
from runtime.backends.selftest import self_test
from runtime.backends.small import small_copies
from runtime.errors import ModelLoadError, RuntimeFault, UnsupportedFeatureError
from runtime.loading.config import check_fields
from runtime.loading.rope import check_ropes
from runtime.options.load import LoadOptions

DOCUMENT = Path(__file__).parents[2] / "docs" / "architectures.md"
BEGIN = "| architecture | hf |\n|---|---|\n"  # of the table, which ends the page
HYBRID: dict[str, dict[str, Any]] = {  # their defaults have no layer with attention
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 16},
    "bamba": {"attn_layer_indices": [1, 3]},
}
SECONDS = 60  # for each architecture


def architectures() -> list[str]:
    """Every ``model_type`` for which transformers has a causal language model."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def verdict(kind: str) -> str:
    """The result of loading this architecture with hf: "proven", with the features switched off, or "refused" and why."""
    try:
        config = AutoConfig.for_model(kind, **HYBRID.get(kind, {})).get_text_config(decoder=True)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # noqa: BLE001  # raised by the library: it cannot build some of its own defaults
        return "not tried: its default configuration cannot be built"
    try:
        check_fields(json.loads(config.to_json_string(use_diff=False)), kind)
        check_ropes(config.to_dict(), "hf", kind)
        return _tested(kind, config, model)
    except RuntimeFault as error:
        return f"refused: {_short(str(error).removeprefix(f'{kind}: '))}"


def _tested(kind: str, config: Any, model: Any) -> str:
    like = LoadedModel(model, config, kind, "", "", has_template=False, device=torch.device("cpu"), parameters=0)
    for small in small_copies(config.to_dict(), facts.context_length(config.to_dict(), LoadOptions())):
        try:
            copy = HfBackend(random_copy(like, small.config), replace(LoadOptions(), context_length=small.context))
            copy.logits_uncached([1, 2])
        except (ModelLoadError, UnsupportedFeatureError):
            raise
        except Exception:  # noqa: BLE001  # raised by the library for some sizes
            continue
        try:
            warnings = self_test(copy, small.lengths, name=kind)
        except RuntimeFault:
            raise
        except Exception as error:  # noqa: BLE001  # as `prove`
            return f"refused: it fails on a text that is pushed in pieces ({type(error).__name__})"
        return "proven" + "".join(f"; {_short(warning)}" for warning in warnings)
    return "tested on the model itself: no small copy of its defaults"


def _short(said: str) -> str:
    """A message without the parts that the page states once, and without those that differ between processors."""
    for longer, shorter in (
        (r"hf answers \S+ nats apart with and without a cache.*", "with and without a cache it answers differently"),
        (r"this library carries recurrent state .*", "state is carried one token at a time"),
        (r"branches are computed one by one .*", "branches one by one or by equal length"),
        (r"only rows of equal length .*", "only rows of equal length share a forward"),
        (r"; use another model", ""),
    ):
        said = re.sub(longer, shorter, said)
    return said


def rows(kinds: Sequence[str]) -> dict[str, str]:
    """The verdict on each."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    found = {}
    for kind in kinds:
        signal.alarm(SECONDS)
        try:
            found[kind] = verdict(kind)
        except TimeoutError:
            found[kind] = "not tried: its default configuration takes too long"
        finally:
            signal.alarm(0)
    return found


def written() -> dict[str, str]:
    """The verdicts that the page has now."""
    table = DOCUMENT.read_text("utf-8").partition(BEGIN)[2]
    return {kind.strip("` "): said.strip() for _, kind, said, _ in (line.split("|") for line in table.splitlines())}


if __name__ == "__main__":
    made = rows(sys.argv[1:]) if sys.argv[1:] else rows(architectures())
    lines = "".join(f"| `{kind}` | {said} |\n" for kind, said in sorted({**written(), **made}.items()))
    DOCUMENT.write_text(DOCUMENT.read_text("utf-8").partition(BEGIN)[0] + BEGIN + lines, "utf-8")
