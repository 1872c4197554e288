"""The bare library (transformers or mlx-lm): its log-probabilities, and its speed in a process of its own.

In that process its threads do not slow the measurement of ours.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from app.doctor.reference import Float32

PROMPT, READ_TOKENS, NEW, STREAMS = 32, 128, 24, 8  # tokens: prompt, prefilled text, answer; prompts at once
ONE, EIGHT, READ = "decode, one stream", "decode, eight streams", "prefill"
# `answer(prompts, new_tokens)` answers all prompts at once; `read(prompt)` only prefills one
Subject = tuple[Callable[[list[list[int]], int], None], Callable[[list[int]], object]]


def bare(backend: str, folder: str) -> Iterator[dict[str, float]]:
    """Yields the rates of one lap for each line read from stdin."""
    subject = _mlx(Path(folder)) if backend == "mlx" else _torch(Path(folder))
    for number, _ in enumerate(sys.stdin):
        yield lap(subject, number)


def lap(subject: Subject, number: int) -> dict[str, float]:
    """Tokens per second, by measurement. Decoding is timed as a long answer minus a short one.

    `number` selects a text to prefill that no earlier lap has read.
    """
    answer, read = subject
    found = {}
    for name, streams in ((ONE, 1), (EIGHT, STREAMS)):
        prompts = [random_ids(seed) for seed in range(streams)]
        answer(prompts, 2)
        short, long = seconds(partial(answer, prompts, 1)), seconds(partial(answer, prompts, NEW))
        found[name] = streams * (NEW - 1) / max(long - short, 1e-6)
    read(random_ids(200 + number, READ_TOKENS))
    found[READ] = READ_TOKENS / seconds(partial(read, random_ids(100 + number, READ_TOKENS)))
    return found


def seconds(work: Callable[[], object]) -> float:
    """The seconds that `work` takes."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def random_ids(seed: int, tokens: int = PROMPT) -> list[int]:
    """Ids of a prompt; the same for the same seed."""
    ids: list[int] = np.random.default_rng(seed).integers(3, 250, tokens).tolist()
    return ids


def bare_logprobs(backend: str, folder: Path, text: list[int]) -> Float32:  # (tokens, vocab)
    """Log-probabilities in nats after each token of a text, on the device that the backend computes on."""
    if backend == "mlx":
        import mlx.core as mx

        logits = np.array(_mlx_model(folder)(mx.array([text]))[0].astype(mx.float32))
    else:
        import torch

        model = _torch_model(folder)
        with torch.inference_mode():
            logits = model(torch.tensor([text], device=model.device)).logits[0].float().cpu().numpy()
    found: Float32 = (logits - np.logaddexp.reduce(logits, axis=1, dtype=np.float64, keepdims=True)).astype(np.float32)
    return found


def _mlx_model(folder: Path) -> Any:
    from mlx_lm.utils import load_model

    return load_model(folder)[0]


def _torch_model(folder: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32).to(device).eval()


def _mlx(folder: Path) -> Subject:
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator, generate_step

    model = _mlx_model(folder)

    def answer(prompts: list[list[int]], new: int) -> None:
        if len(prompts) == 1:
            for _ in generate_step(mx.array(prompts[0]), model, max_tokens=new):
                pass
            return
        generator = BatchGenerator(model, max_tokens=new)
        generator.insert(prompts)
        while generator.next_generated():
            pass
        generator.close()

    def read(prompt: list[int]) -> None:
        mx.eval(model(mx.array([prompt]))[:, -1])

    return answer, read


def _torch(folder: Path) -> Subject:
    import torch
    from transformers import GenerationConfig

    model = _torch_model(folder)
    model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def answer(prompts: list[list[int]], new: int) -> None:
        ids = torch.tensor(prompts, device=model.device)
        model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, min_new_tokens=new)

    def read(prompt: list[int]) -> None:
        with torch.inference_mode():
            model(torch.tensor([prompt], device=model.device), logits_to_keep=1)

    return answer, read
