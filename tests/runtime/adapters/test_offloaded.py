"""Adapters on weights that stay on disk: the numbers equal those of the model in memory, and peft's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from runtime import AdapterError, load
from tests.fakes import settled
from tests.runtime.adapters.makers import Peft
from tests.runtime.backends.reference import random_ids
from tests.tiny_models import tiny_path

WEIGHTS = "adapter_model.safetensors"
TOLERANCE = 1e-4  # nats, as for all adapters


@pytest.mark.slow
@pytest.mark.parametrize("limit", [1, 400_000], ids=["all on disk", "a part"])
def test_adapters_on_offloaded_weights_give_the_numbers_of_peft(folders: dict[str, Path], peft: Peft, limit: int) -> None:
    ids = random_ids(7, 30).tolist()
    with load(tiny_path("llama"), "hf", device="cpu", offload="disk", offload_memory_bytes=limit) as model:
        base = model.next_token_logprobs_sync(ids)
        for name in ("A", "B"):
            model.load_adapter(model.add_adapter(folders[name], name))
        for stack in ((("A", 1.0),), (("B", 0.5),), (("A", 0.7), ("B", 1.3))):
            got = model.next_token_logprobs_sync(ids, adapters=stack)
            np.testing.assert_allclose(got, peft.logprobs(ids, *stack)[-1], atol=TOLERANCE)
            assert np.abs(got - base).max() > 0.01
        # after swapping and unloading, the base is unchanged and still cached
        before = settled(model)[0].tokens_computed
        np.testing.assert_array_equal(model.next_token_logprobs_sync(ids, adapters=()), base)
        assert settled(model)[0].tokens_computed == before
        for name in ("A", "B"):
            model.unload_adapter(name)
        model.clear_cache()
        np.testing.assert_array_equal(model.next_token_logprobs_sync(ids), base)


def test_base_weights_saved_with_an_adapter_are_compared_with_those_on_disk(folders: dict[str, Path], tmp_path: Path) -> None:
    # given an adapter for the head, which peft saved with the base's head, and a copy with another head
    other = tmp_path / "other"
    other.mkdir()
    for file in folders["A"].iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    tensors = load_file(other / WEIGHTS)
    copies = [name for name in tensors if ".lora_" not in name]
    assert copies
    save_file({name: array + (name in copies) for name, array in tensors.items()}, other / WEIGHTS)
    with load(tiny_path("llama"), "hf", device="cpu", offload="disk", offload_memory_bytes=1) as model:
        with pytest.raises(AdapterError, match=r"weights of its own for .*lm_head.*another base"):
            model.load_adapter(model.add_adapter(other, "other"))
        assert model.list_adapters() == []
        model.load_adapter(model.add_adapter(folders["A"], "A"))
        assert [name.startswith("A_") for name in model.list_adapters()] == [True]
        assert model.metrics().tokens_computed == 0
