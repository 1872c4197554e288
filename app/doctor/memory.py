"""One row for each known way in which Metal ends or harms a process; on a CPU, the rows that apply there."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil

from app.doctor.finding import Finding, held
from app.doctor.reference import SMOLLM2, Reference, references, write_model, write_vast_model
from resources.processes import child_command
from runtime import (
    GenerationOptions,
    LanguageModel,
    LoadOptions,
    MemoryBudgetError,
    ModelLoadError,
    PromptProgress,
    estimate_fit,
    list_models,
    load,
)

BUFFERS: Final = 499_000  # the most that Metal holds at once (mlx-lm issue 1672)
BUFFERS_BAR: Final = BUFFERS // 10
EDGES: Final = 10_000
COMMAND_BAR: Final = 2.0  # seconds; the watchdog ends commands of more than about 5
PROMPT, PROMPT_ON_A_PROCESSOR = 32_768, 8_192  # tokens
CONTEXT: Final = 65_536  # tokens
STEM, BRANCHES, BRANCH_TOKENS = 1_500, 8, 8
COPIES_BAR: Final = 3.0  # copies of the branches' KV; one copy per branch would be eight
THREADS, THREADS_BAR = 4, 1e-4
CYCLES, RETURNED_BAR = 3, 64e6  # loads; bytes
GUARD_BAR: Final = 10.0  # seconds
FULL = 200_000  # bytes; a KV budget smaller than the answer needs
FREED, KEPT_BAR = 24, 300e6  # buffers of 20 MB and more; bytes
EXITS, EXIT_SECONDS = 2, 60.0
WIRED_BAR: Final = 0.6  # of the machine's memory; macOS gives two thirds or more
_left: list[object] = []  # keeps a model open until the process ends
ESTIMATED_TOKENS, ESTIMATED_CHUNK, ESTIMATE_BAR = 256, 64, 0.15
REPORT: Final = "report it with this table"
Trial = Callable[[str, str, Reference, Path], Finding]  # name, backend, model, folder


def memory(backend: str) -> Iterator[Finding]:
    """Tries every risk, each on a newly loaded model."""
    [llama] = [reference for reference in references() if reference.name == "llama"]
    trials: list[tuple[str, Trial]] = [
        ("estimated against measured memory", _estimated),  # first: it reads the peak of the whole process
        ("a model larger than memory", _guard),
        ("an answer larger than its memory", _overflow),
        (f"buffers with {EDGES:,} cached edges", _buffers),
        ("freed buffers that are kept", _freed),
        ("longest step of a long prompt", _longest_step),
        (f"answers to {THREADS} threads at once", _threads),
        ("memory of eight branches", _branches),
        ("memory after closing a model", _returned),
        ("a process that ends with a model open", _at_exit),
    ]
    if backend == "mlx":
        yield from _metal()
    for name, trial in trials:
        with tempfile.TemporaryDirectory(prefix="elsewise-doctor-") as room:
            try:
                found = trial(name, backend, llama, Path(room) / "model")
            except Unavailable as reason:
                found = Finding(name, "not here", "", "skipped", str(reason))
            except Exception as error:  # noqa: BLE001  # the row reports whatever a library raises
                found = Finding(name, type(error).__name__, "", "failed", f"{error}; {REPORT}")
            yield found


class Unavailable(Exception):
    """A trial does not apply to this machine; with the reason."""


def _metal() -> Iterator[Finding]:
    import mlx
    import mlx.core as mx

    package = Path(mlx.__path__[0])
    libraries = list(package.rglob("libmlx.*"))
    advice = "install mlx again; of two libraries the second finds no kernels"
    yield held("one libmlx", len(libraries), 1, f"{len(libraries)}", "1", advice)
    if not mx.metal.is_available():
        verdict, why = (
            ("failed", "MLX does not see the GPU: install mlx again") if sys.platform == "darwin" else ("skipped", "no Metal")
        )
        yield Finding("Metal", "not here", "", verdict, why)  # type: ignore[arg-type]  # both are verdicts
        return
    alone = [library for library in libraries if not library.with_name("mlx.metallib").is_file()]
    shown = "beside libmlx" if not alone else "not beside libmlx"
    yield held("mlx.metallib", len(alone), 0, shown, "beside libmlx", "install mlx again")
    facts = mx.device_info()
    wired, whole = int(facts.get("max_recommended_working_set_size", 0)), int(facts["memory_size"])
    shown = f"{wired / 1e9:.1f} GB of {whole / 1e9:.1f} GB may stay resident"
    advice = "it was lowered, or macOS is older than 14: `sudo sysctl iogpu.wired_limit_mb=0` gives the system's own limit"
    yield held("wired limit", wired / whole, WIRED_BAR, shown, f">= {100 * WIRED_BAR:.0f} %", advice, at_least=True)


def leave(folder: Path, backend: str) -> None:
    """Begins an answer and leaves the model open; runs in a child process, which then ends."""
    stream = iter(load(folder, backend).generate_sync([3, 4, 5], GenerationOptions(max_tokens=CONTEXT // 2, ignore_eos=True)))
    _left.append((next(stream), stream))


def _opened(backend: str, reference: Reference, folder: Path, options: dict[str, Any] | None = None) -> LanguageModel:
    return load(_wide(reference, folder), backend, **(options or {}))


def _wide(reference: Reference, folder: Path) -> Path:
    """Writes the reference's model with a context that is long enough for each row."""
    return write_model(folder, reference.config | {"max_position_embeddings": CONTEXT}, reference.shapes)


def _estimated(name: str, backend: str, _: Reference, __: Path) -> Finding:
    """The peak memory of loading the default model and reading a text, against the estimate."""
    entry = next((each for each in list_models() if each.name == SMOLLM2 and each.complete), None)
    if entry is None:
        raise Unavailable(f"needs {SMOLLM2} on the shelf")
    config = json.loads((entry.path / "config.json").read_text("utf-8"))
    stored = sum(file.stat().st_size for file in entry.path.glob("*.safetensors"))
    options: dict[str, Any] = {"prefill_chunk_tokens": ESTIMATED_CHUNK}
    fit = estimate_fit(
        config,
        stored,
        dtype=entry.dtype,
        backend=backend,
        context=ESTIMATED_TOKENS,
        options=LoadOptions.from_mapping(options),
    )
    with load(entry.path, backend, **options) as model:
        ids = np.random.default_rng(3).integers(3, 250, ESTIMATED_TOKENS).tolist()
        list(model.generate_sync(ids, GenerationOptions(max_tokens=2, ignore_eos=True)))
        on_gpu = _on_gpu(model)
    measured = _most_arrays(backend) if on_gpu else _most_resident()
    estimated = fit.peak - (fit.libraries if on_gpu else 0)  # arrays alone
    share = abs(estimated / measured - 1)
    shown = f"{estimated / 1e6:,.0f} MB estimated, {measured / 1e6:,.0f} MB measured"
    return held(name, share, ESTIMATE_BAR, shown, f"within {100 * ESTIMATE_BAR:.0f} %", REPORT)


def _most_arrays(backend: str) -> int:
    """Peak bytes of arrays on the GPU."""
    if backend == "mlx":
        return int(import_module("mlx.core").get_peak_memory())
    torch = import_module("torch")
    if not torch.cuda.is_available():
        raise Unavailable("torch does not say what arrays took at most on this device")
    return int(torch.cuda.max_memory_allocated())


def _most_resident() -> int:
    """Peak resident bytes of the process."""
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    lines = Path("/proc/self/status").read_text("ascii").splitlines()  # unlike `ru_maxrss`, reset in a child
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def _guard(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The seconds until weights of twice the machine's memory are refused."""
    weights = write_vast_model(folder, reference, 2 * psutil.virtual_memory().total)
    begin = time.perf_counter()
    try:
        with load(folder, backend):
            return Finding(name, "was loaded", "refused", "missed", REPORT)
    except ModelLoadError:
        seconds = time.perf_counter() - begin
    shown = f"{weights / 1e9:.0f} GB refused in {seconds:.1f} s"
    return held(name, seconds, GUARD_BAR, shown, f"refused in {GUARD_BAR:.0f} s", REPORT)


def _overflow(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """An answer that needs more than the KV budget: it must end with our error, and the model must go on."""
    bar = "refused; the next is answered"
    options = GenerationOptions(max_tokens=CONTEXT // 2, ignore_eos=True)
    with _opened(backend, reference, folder, {"kv_cache_bytes": FULL}) as model:
        tokens = 0
        try:
            for _ in model.generate_sync(reference.text, options):
                tokens += 1
        except MemoryBudgetError:
            apart = np.abs(model.next_token_logprobs_sync(reference.text) - model.next_token_logprobs_uncached(reference.text))
            shown = f"refused after {tokens:,} tokens, the next answer {apart.max():.1e} nats apart"
            return held(name, float(apart.max()), THREADS_BAR, shown, bar, REPORT)
    return Finding(name, f"{tokens:,} tokens in {FULL:,} bytes", bar, "missed", REPORT)


def _buffers(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The number of arrays of a trie with many edges."""
    with _opened(backend, reference, folder) as model:
        stem = reference.text[:30]
        contexts = [[*stem, 3 + number // 200, 3 + number % 200] for number in range(EDGES)]
        for start in range(0, EDGES, 1000):
            model.batch_next_token_logprobs_sync(contexts[start : start + 1000])
        edges = model.cache_report().edges
        gc.collect()
        array = import_module("mlx.core").array if backend == "mlx" else import_module("torch").Tensor
        arrays = sum(issubclass(type(each), array) for each in gc.get_objects())
    shown = f"{arrays:,} arrays beside {edges:,} edges"
    if edges < EDGES:
        return Finding(name, shown, f"{EDGES:,} edges", "missed", f"the cache holds fewer edges than were made; {REPORT}")
    return held(name, arrays, BUFFERS_BAR, shown, f"<= {BUFFERS_BAR:,}, a tenth of what Metal holds", REPORT)


def _freed(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The bytes that MLX keeps of freed buffers of many sizes; without a limit it keeps all."""
    if backend != "mlx":
        raise Unavailable("only MLX says what it keeps")
    import mlx.core as mx

    with _opened(backend, reference, folder) as model:
        model.next_token_logprobs_sync(reference.text)
        for size in range(FREED):
            mx.eval(mx.zeros(((20 + size) << 20,), mx.uint8))
        kept = int(mx.get_cache_memory())
    shown = f"{kept / 1e6:,.0f} MB of {sum((20 + size) << 20 for size in range(FREED)) / 1e6:,.0f} MB"
    return held(name, kept, KEPT_BAR, shown, f"<= {KEPT_BAR / 1e6:.0f} MB", REPORT)


def _longest_step(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The longest time between two reports of a long prefill, an upper bound for a GPU command."""
    with _opened(backend, reference, folder) as model:
        tokens = PROMPT if _on_gpu(model) else PROMPT_ON_A_PROCESSOR
        ids = np.random.default_rng(1).integers(3, 250, tokens).tolist()
        times = [time.perf_counter()]

        def hear(_: PromptProgress) -> None:
            times.append(time.perf_counter())

        next(iter(model.generate_sync(ids, GenerationOptions(max_tokens=1, ignore_eos=True), on_progress=hear)))
        times.append(time.perf_counter())
    longest = float(np.diff(times).max())
    advice = f"load with a smaller prefill_chunk_tokens; {REPORT}"
    return held(name, longest, COMMAND_BAR, f"{longest:.2f} s over {tokens:,} tokens", f"<= {COMMAND_BAR:g} s", advice)


def _threads(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The error of answers to calls from several threads, although arrays belong to one thread."""
    with _opened(backend, reference, folder) as model:
        contexts = [reference.text[: 40 + number] for number in range(THREADS * 4)]
        expected = [model.next_token_logprobs_uncached(context) for context in contexts]
        off: list[float] = []

        def ask(number: int) -> None:
            mine = range(number, len(contexts), THREADS)
            off.extend(float(np.abs(model.next_token_logprobs_sync(contexts[at]) - expected[at]).max()) for at in mine)

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    worst = float(np.max(off)) if len(off) == len(contexts) else float("inf")
    return held(name, worst, THREADS_BAR, f"{worst:.1e} nats apart", f"<= {THREADS_BAR:g} nats", REPORT)


def _branches(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """Peak memory of eight branches, in multiples of their shared KV."""
    if backend != "mlx":
        raise Unavailable("only MLX says what its arrays took at most")
    import mlx.core as mx

    with _opened(backend, reference, folder) as model:
        stem = np.random.default_rng(2).integers(3, 250, STEM).tolist()
        options = GenerationOptions(max_tokens=BRANCH_TOKENS, ignore_eos=True, seed=1)

        async def branch() -> int:
            return len([record async for record in model.continue_many(stem, BRANCHES, options)])

        asyncio.run(branch())  # fills the cache and compiles the kernels
        before = mx.get_active_memory()
        mx.reset_peak_memory()
        tokens = asyncio.run(branch())
        extra = mx.get_peak_memory() - before
        family = model.info.kv_bytes_per_token * (STEM + tokens)
    copies = extra / family
    shown = f"{extra / 1e6:.1f} MB, {copies:.1f} times the {family / 1e6:.1f} MB that they share"
    return held(name, copies, COPIES_BAR, shown, f"<= {COPIES_BAR:g} times", f"attention copies keys; {REPORT}")


def _returned(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The memory that a process keeps after models were closed."""
    there = [entry for entry in list_models() if entry.name == SMOLLM2 and entry.complete]
    source: Any = SMOLLM2 if there else write_model(folder, reference.config, reference.shapes)
    process, sizes = psutil.Process(os.getpid()), []
    for _ in range(CYCLES):
        with load(source, backend) as model:
            model.next_token_logprobs_sync(reference.text)
        gc.collect()
        sizes.append(process.memory_info().rss)
    grown, arrays = sizes[-1] - sizes[0], _arrays_left(backend)
    loads = f"{CYCLES - 1} more loads of {'a' if there else 'a small'} model"
    shown = f"{grown / 1e6:+.0f} MB over {loads}, {arrays / 1e6:.0f} MB of arrays"
    bar = f"<= {RETURNED_BAR / 1e6:.0f} MB of each"
    return held(name, max(grown, arrays), RETURNED_BAR, shown, bar, REPORT)


def _arrays_left(backend: str) -> int:
    """Bytes of live and reusable arrays, which on a GPU are not in the process's own memory."""
    if backend == "mlx":
        mx = import_module("mlx.core")
        return int(mx.get_active_memory() + mx.get_cache_memory())
    torch = import_module("torch")
    return int(torch.cuda.memory_reserved()) if torch.cuda.is_available() else 0


def _at_exit(name: str, backend: str, reference: Reference, folder: Path) -> Finding:
    """The exit status of processes that end during an answer: a library's threads must not abort them."""
    command = child_command("app.doctor.child", "leave", str(_wide(reference, folder)), backend)
    ends = [
        subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=EXIT_SECONDS, check=False).returncode
        for _ in range(EXITS)
    ]
    failed = [end for end in ends if end]
    shown = f"{len(failed)} of {EXITS} failed" + (f", exit status {failed[0]}" if failed else "")
    return held(name, len(failed), 0, shown, "0 failed", f"close models before the end; {REPORT}")


def _on_gpu(model: LanguageModel) -> bool:
    return model.info.device not in ("cpu", "")
