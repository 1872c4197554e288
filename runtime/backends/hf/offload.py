"""Models larger than memory: weights that do not fit stay on disk, and accelerate's hooks read them at every forward.

Weights are read from the model's own safetensors files. Only weights that the model has in another form (renamed or fused)
are copied to a temporary folder, which is removed with the model.
"""

from __future__ import annotations

import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from runtime.errors import BackendUnavailableError, UnsupportedFeatureError
from runtime.options.load import LoadOptions
from runtime.records import Float32

log = logging.getLogger(__name__)
MEMORY_SHARE = 2  # by default weights take at most 1 / 2 of the free memory


@dataclass(slots=True)
class Offload:
    """The offloaded part of one model.

    Attributes:
        device: The device that computes forwards.
        folder: A temporary folder for weights that cannot be read in place.
        limit: Bytes of memory for weights: resident ones, and the largest layer during its computation.
        resident: Bytes of weights in memory.
        on_disk: Bytes that every forward reads; a matrix that is both embedding and head is read twice.
        parameters: Number of parameters; counted at the load, as shared ones on disk cannot be recognised later.
    """

    device: torch.device
    folder: Path
    limit: int
    resident: int = 0
    on_disk: int = 0
    parameters: int = 0

    @property
    def arguments(self) -> dict[str, Any]:
        """Arguments for `from_pretrained`."""
        place = "cpu" if self.device.type == "cpu" else self.device.index or 0
        return {"device_map": "auto", "max_memory": {place: self.limit}, "offload_folder": str(self.folder)}

    def measure(self, model: Any) -> None:
        """Counts bytes in memory and on disk; parameters on disk are on the device "meta"."""
        tied = set(getattr(model, "all_tied_weights_keys", None) or ())
        for name, parameter in model.named_parameters():
            self.parameters += 0 if name in tied else parameter.numel()
            size = parameter.numel() * parameter.element_size()
            if parameter.device.type == "meta":
                self.on_disk += size
            else:
                self.resident += size
        log.info("%d bytes of weights in memory, %d on disk", self.resident, self.on_disk)

    def warning(self, seconds: float) -> str:
        """The warning about the cost of offload; `seconds` is the duration of a forward, measured at load."""
        if not self.on_disk:
            return f"offload='disk': all {self.resident:,} bytes of weights fit into {self.limit:,}, so nothing is offloaded"
        return (
            f"offload='disk': {self.on_disk:,} of {self.on_disk + self.resident:,} bytes of weights are on disk, and every "
            f"forward reads them again ({self.on_disk:,} bytes for each token of a single stream, shared by the rows of a "
            f"batch and the tokens of a prompt's chunk); measured at load: {seconds:.2g} s per forward. More memory "
            "(offload_memory_bytes) or quantised weights are faster"
        )

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


@contextmanager
def offloading(options: LoadOptions, device: torch.device, name: str) -> Iterator[Offload | None]:
    """The plan for one load; None without offload. Removes the folder if the load fails.

    Raises:
        BackendUnavailableError: accelerate is not installed.
        UnsupportedFeatureError: A device that accelerate cannot offload from.
    """
    if options.offload == "none":
        yield None
        return
    if importlib.util.find_spec("accelerate") is None:
        raise BackendUnavailableError(
            f"{name}: offload='disk' needs accelerate, which is not installed (`pip install 'accelerate>=1.10'`)"
        )
    if device.type == "mps":
        raise UnsupportedFeatureError("offload='disk' works on cpu and cuda; on mps memory is shared: use device='cpu'")
    free = int(psutil.virtual_memory().available if device.type == "cpu" else torch.cuda.mem_get_info(device)[0])
    limit = max(options.offload_memory_bytes or free // MEMORY_SHARE, 1)
    plan = Offload(device, Path(tempfile.mkdtemp(prefix="elsewise-offload-")), limit)
    before = logging.getLogger("accelerate.big_modeling").level
    logging.getLogger("accelerate.big_modeling").setLevel(logging.ERROR)  # it warns of the offload itself
    try:
        yield plan
    except BaseException:
        plan.close()
        raise
    finally:
        logging.getLogger("accelerate.big_modeling").setLevel(before)


def own_weight(module: Any) -> Float32:
    """A module's matrix in float32, read from disk if it is offloaded."""
    if module.weight.is_meta:
        from accelerate.utils import align_module_device  # type: ignore[import-untyped]  # untyped; installed wherever weights are on disk

        with align_module_device(module):
            return _plain(module.weight)
    return _plain(module.weight)


def _plain(weight: torch.Tensor) -> Float32:
    array: Float32 = weight.detach().float().cpu().numpy()
    return array
