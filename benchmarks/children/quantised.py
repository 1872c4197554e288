"""Imports a GGUF file, keeps it quantised and loads it on hf, in its own process; JSON to stdout.

`python -m benchmarks.children.quantised FILE`: bytes of the file, of the imported weights on the disk, and of all CPU tensors
of the process after the first query.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
from pathlib import Path


def main(file: Path) -> dict[str, int]:
    """The three byte counts."""
    with tempfile.TemporaryDirectory(prefix="elsewise-bench-") as shelf:
        os.environ["ELSEWISE_MODELS"] = shelf
        import torch  # like the runtime, only after the variable is set

        from runtime import import_model, load

        folder = import_model(file, "kept", keep_quantised=True)
        with load(folder.path, "hf", device="cpu") as model:
            model.next_token_logprobs_sync(list(range(10, 20)))
            gc.collect()
            tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.device.type == "cpu"]
            held = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in tensors}
        return {
            "file": file.stat().st_size,
            "disk": sum(each.stat().st_size for each in folder.weights),
            "memory": sum(held.values()),
        }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]))))
