"""The kinds of servers, in the order of detection. A new kind is a file here and a line in `DIALECTS`."""

from __future__ import annotations

from typing import Final

from runtime.remote.dialects.llama_cpp import LlamaCpp
from runtime.remote.dialects.mlx_lm import MlxLm
from runtime.remote.dialects.openai import Dialect
from runtime.remote.dialects.sglang import SGLang
from runtime.remote.dialects.vllm import VLLM, Elsewise

DIALECTS: Final[tuple[Dialect, ...]] = (
    Elsewise(),
    VLLM(),
    SGLang(),
    LlamaCpp(),
    MlxLm(),
    Dialect(),  # last: it recognises every server that has /v1/models
)
BY_NAME: Final = {dialect.name: dialect for dialect in DIALECTS}
