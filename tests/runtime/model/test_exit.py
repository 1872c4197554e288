"""Errors carry no arrays off the owner thread, and a process that used MLX ends cleanly."""

from __future__ import annotations

import subprocess
import sys
from types import TracebackType

import pytest

from tests.runtime.model.trouble import troubled
from tests.tiny_models import tiny_path

OURS = ("/runtime/scheduler/", "/runtime/backends/", "site-packages")


def variables(error: BaseException | None, seen: set[int]) -> list[tuple[str, str, str]]:
    """(function, variable, type) of everything of the owner thread that an error's traceback keeps alive."""
    found: list[tuple[str, str, str]] = []
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace: TracebackType | None = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            if any(part in code.co_filename for part in OURS):
                found += [(code.co_name, key, type(value).__name__) for key, value in trace.tb_frame.f_locals.items()]
            trace = trace.tb_next
        found += variables(error.__cause__, seen)
        error = error.__context__
    return found


@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_an_error_keeps_nothing_of_the_owner_thread_alive(backend: str) -> None:
    # given a request that fails inside the model, and a caller that keeps the error
    with troubled(backend, "llama") as case:
        case.faults.raise_on = {case.guilty: ZeroDivisionError("broken kernel")}
        with pytest.raises(ZeroDivisionError) as caught:
            case.model.next_token_logprobs_sync([1, 2, case.guilty])
        case.faults.raise_on = {}
        error = caught.value
        # then its frames hold no activation, pack, trie node or model: these would be freed on the caller's thread
        kept = variables(error, set())
        assert kept == []


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mamba"])
def test_a_process_that_used_mlx_ends_without_an_error(name: str) -> None:
    code = (
        "import sys; from runtime import load\n"
        f"with load({str(tiny_path(name))!r}, backend='mlx') as model: model.next_token_logprobs_sync(list(range(1, 60)))\n"
    )
    for _ in range(3):  # it is a race: 2 of 6 with llama, 6 of 6 with mamba
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_process_that_uses_mlx_on_its_own_thread_too_ends_without_an_error() -> None:
    # given a compiled function of the caller's that is referenced until the very end
    code = (
        "from runtime import load\n"
        f"with load({str(tiny_path('llama'))!r}, backend='mlx') as model: model.next_token_logprobs_sync([1, 2, 3])\n"
        "import ctypes, mlx.core as mx\n"
        "doubled = mx.compile(lambda x: 2 * mx.sin(x)); mx.eval(doubled(mx.ones(3)))\n"
        "ctypes.pythonapi.Py_IncRef(ctypes.py_object(doubled))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
