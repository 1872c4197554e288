"""A process that repeatedly loads and closes models keeps nothing of them."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from runtime import ModelLoadError, load
from runtime.loading.model_folder import open_folder
from runtime.memory import limit_arenas, return_memory
from runtime.text.tokenizer import Tokenizer
from tests.tiny_models import tiny_path

PATIENCE_SECONDS = 2.0
COUNT_ARENAS = """  # of a process in which a model was loaded and twelve threads have allocated
import ctypes
import threading
from runtime import load

class Stream(ctypes.Structure):
    _fields_ = []

libc = ctypes.CDLL(None)
libc.open_memstream.restype = ctypes.POINTER(Stream)
with load("mock", "mock"):
    ready = threading.Barrier(12)
    threads = [threading.Thread(target=lambda: (ctypes.create_string_buffer(5_000), ready.wait())) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text, size = ctypes.c_char_p(), ctypes.c_size_t()
    stream = libc.open_memstream(ctypes.byref(text), ctypes.byref(size))
    libc.malloc_info(0, stream)
    libc.fclose(stream)
print(text.value.decode().count("<heap nr="))
"""


def native_threads(at_most: int = 0) -> int:
    """The number of threads of the process, after waiting a while for it to fall to `at_most`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        count = len(list(Path("/proc/self/task").iterdir()))
        if count <= at_most or time.monotonic() > deadline:
            return count
        time.sleep(0.05)


def use(backend: str) -> list[float]:
    with load(tiny_path("llama"), backend) as model:
        return [float(x) for x in model.next_token_logprobs_sync([1, 2, 3])[:5]]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_closing_a_model_leaves_no_thread_of_the_library(backend: str) -> None:
    first = use(backend)
    before = native_threads()
    for _ in range(4):
        assert use(backend) == first
    assert native_threads(before) <= before


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_several_models_at_once_are_right_and_leave_no_thread() -> None:
    def several() -> list[list[float]]:
        models = [load(tiny_path("llama"), "mlx") for _ in range(3)]
        found: list[list[float]] = [[] for _ in models]

        def ask(place: int) -> None:
            for _ in range(20):
                models[place].kv.clear_cache()
                found[place] = [float(x) for x in models[place].next_token_logprobs_sync([1, 2, 3])[:5]]

        threads = [threading.Thread(target=ask, args=(place,)) for place in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for model in models:
            model.close()
        return found

    first = use("mlx")
    assert several() == [first] * 3
    before = native_threads()
    assert several() == [first] * 3
    assert native_threads(before) <= before


@pytest.mark.parametrize("collects", [True, False])
def test_a_load_pauses_garbage_collection_and_leaves_it_as_it_was(tmp_path: Path, collects: bool) -> None:
    seen = list[bool]()
    before = gc.isenabled()
    try:
        if collects:
            gc.enable()
        else:
            gc.disable()
        load(tiny_path("llama"), "hf", on_progress=lambda _: seen.append(gc.isenabled())).close()
        after = gc.isenabled()
        with pytest.raises(ModelLoadError):
            load(tmp_path, "hf")
        assert (after, gc.isenabled()) == (collects, collects)
        assert set(seen) == {False}
    finally:
        if not before:
            gc.disable()


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_close_frees_the_vocabulary_without_the_collector(backend: str) -> None:
    def vocabularies() -> int:
        tokenizers = [each for each in gc.get_objects() if type(each) is Tokenizer]
        pieces = [each for each in gc.get_objects() if type(each) is list and len(each) > 90 and type(each[5]) is bytes]
        return len(tokenizers) + len(pieces)

    use(backend)
    gc.collect()
    before = vocabularies()
    use(backend)
    assert vocabularies() == before


@pytest.mark.usefixtures("no_collector")
def test_close_frees_the_weights_without_the_collector() -> None:
    import torch

    def tensors() -> int:
        return sum(issubclass(type(each), torch.nn.Parameter) for each in gc.get_objects())

    use("hf")
    gc.collect()
    before = tensors()
    use("hf")
    assert tensors() == before


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc for the bytes in use")
def test_a_thread_keeps_no_words_of_freed_tokenizers() -> None:
    class Usage(ctypes.Structure):
        _fields_: ClassVar = [(f"_{at}", ctypes.c_size_t) for at in range(7)] + [("used", ctypes.c_size_t * 3)]

    usage = ctypes.CDLL(None).mallinfo2
    usage.restype = Usage

    def used_after(first: int) -> int:
        text = " ".join(f"word{number}" for number in range(first, first + 1000))
        tokenizer = Tokenizer.from_folder(open_folder(tiny_path("llama")))
        tokenizer.encode(text)
        tokenizer.encode_renamed(text, {"<|im_end|>": "|"})
        del tokenizer
        gc.collect()
        return int(usage().used[0])

    before = used_after(0)
    assert max(used_after(1000 * number) for number in range(1, 4)) - before < 100_000


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="counts arenas of glibc")
@pytest.mark.parametrize(("variables", "count"), [({}, 2), ({"MALLOC_ARENA_MAX": "5"}, 5)])
def test_threads_share_few_arenas_unless_the_environment_sets_their_number(variables: dict[str, str], count: int) -> None:
    rest = {name: value for name, value in os.environ.items() if name not in ("MALLOC_ARENA_MAX", "GLIBC_TUNABLES")}
    child = subprocess.run([sys.executable, "-c", COUNT_ARENAS], env=rest | variables, capture_output=True, text=True)
    assert (child.stdout, child.stderr) == (f"{count}\n", "")


def test_allocator_settings_are_skipped_with_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _: object())
    limit_arenas()
    return_memory()
