"""A process that loads and closes models again and again keeps nothing of them."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime import load
from runtime.text.tokenizer import Tokenizer
from tests.tiny_models import tiny_path

PATIENCE_SECONDS = 2.0


def native_threads(at_most: int = 0) -> int:
    """How many the process has, once those that are ending have ended; waits until they are no more than `at_most`."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        count = len(list(Path("/proc/self/task").iterdir()))
        if count <= at_most or time.monotonic() > deadline:
            return count
        time.sleep(0.05)


def use(backend: str) -> list[float]:
    with load(tiny_path("llama"), backend) as model:
        return [float(x) for x in model.next_token_logprobs_sync([1, 2, 3])[:5]]


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_no_thread_of_the_library_stays(backend: str) -> None:
    first = use(backend)
    before = native_threads()
    for _ in range(4):
        assert use(backend) == first
    assert native_threads(before) <= before


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_models_at_once_have_streams_of_their_own() -> None:
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
