"""Large tensors of the hf backend are in huge pages, unless the user's setting says otherwise."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

KERNEL = Path("/sys/kernel/mm/transparent_hugepage/enabled")
FLAGS_OF_A_TENSOR = """
import runtime.backends.hf
import torch

tensor = torch.ones(16 << 20)
address = tensor.data_ptr()
inside = False
for line in open("/proc/self/smaps"):
    words = line.split()
    if "-" in words[0] and not words[0].endswith(":"):
        start, end = (int(part, 16) for part in words[0].split("-"))
        inside = start <= address < end
    elif inside and words[0] == "VmFlags:":
        print(*words[1:])
"""


@pytest.mark.skipif(not KERNEL.exists(), reason="the kernel has no transparent huge pages")
@pytest.mark.parametrize(("setting", "huge"), [(None, True), ("1", True), ("0", False)])
def test_large_tensors_are_advised_to_be_in_huge_pages(setting: str | None, huge: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "THP_MEM_ALLOC_ENABLE"}
    if setting is not None:
        environment["THP_MEM_ALLOC_ENABLE"] = setting
    flags = subprocess.run(
        [sys.executable, "-c", FLAGS_OF_A_TENSOR], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()
    assert "rd" in flags, "the mapping of the tensor was not found"
    assert ("hg" in flags) is huge
