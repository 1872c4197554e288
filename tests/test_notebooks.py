"""The notebooks of the documentation run on a real kernel, and are kept without outputs; `await` and `_sync` work in a cell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.pages import PAGES, ROOT
from tests.tiny_models import tiny_path
from tests.tools.notebooks import NOTEBOOKS

NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))
PATIENCE_SECONDS = 280
PNG = b"\x89PNG"


def execute(path: Path, folder: Path) -> dict[str, Any]:
    """The executed notebook, by the tool, as `python -m` runs it."""
    command = [sys.executable, "-m", "tests.tools.notebooks", str(folder), str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((folder / path.name).read_text("utf-8"))
    return found


def written(folder: Path, *cells: str) -> Path:
    """A notebook of code cells; one that begins with "# fails" may raise."""
    made: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "id": f"cell-{number}",
            "execution_count": None,
            "metadata": {"tags": ["raises-exception"]} if cell.startswith("# fails") else {},
            "outputs": [],
            "source": cell,
        }
        for number, cell in enumerate(cells)
    ]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    path = folder / "own.ipynb"
    path.write_text(json.dumps({"cells": made, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}))
    return path


def outputs(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    return [output for cell in notebook["cells"] for output in cell.get("outputs", ())]


def printed(notebook: dict[str, Any]) -> str:
    return "".join("".join(output["text"]) for output in outputs(notebook) if output.get("name") == "stdout")


def test_the_three_notebooks_have_no_outputs_and_pages_link_to_them_and_their_pictures() -> None:
    assert len(NAMES) == 3
    for name in NAMES:
        notebook = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        assert [(cell["outputs"], cell["execution_count"]) for cell in code] == [([], None)] * len(code)
        assert (NOTEBOOKS / f"{name}.png").read_bytes().startswith(PNG)
        for use in (f"](../notebooks/{name}.ipynb)", f"](../notebooks/{name}.png)"):
            assert any(use in text for text in PAGES.values()), use


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_of_the_documentation_runs(name: str, tmp_path: Path) -> None:
    notebook = execute(NOTEBOOKS / f"{name}.ipynb", tmp_path)
    assert not [output for output in outputs(notebook) if output["output_type"] == "error"]
    pages = ["".join(output["data"].get("text/html", "")) for output in outputs(notebook) if "data" in output]
    assert any('<div class="elsewise">' in page for page in pages)
    assert (tmp_path / f"{name}.png").read_bytes().startswith(PNG)


@pytest.mark.slow
def test_await_and_the_blocking_members_work_in_a_cell(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "from runtime import GenerationOptions, load, spawn\n"
        "model = load('x', backend='fake')\n"
        "ids = model.tokenize('in a cell')\n"
        "options = GenerationOptions(max_tokens=4, seed=1, ignore_eos=True)",
        "awaited = await model.score(ids)\nblocking = model.score_sync(ids)\nprint('scores', awaited == blocking)",
        "one = [record async for record in model.generate(ids, options)]\n"
        "print('tokens', len(one), one == list(model.generate_sync(ids, options)))",
        "many = [number async for number, run in model.score_many(['a', 'b', 'c'])]\n"
        "print('many', many, [number for number, run in model.score_many_sync(['a', 'b', 'c'])])",
        "lens = await model.lens(ids, [0, 1])\n"
        "print('lens', lens.ranks.tolist() == model.lens_sync(ids, [0, 1]).ranks.tolist())",
        "from runtime import run_sync\nprint('run_sync', len(run_sync(model.score_run(ids))))",
        "with model.open_session() as session:\n    await session.prefill('more')\n    session.prefill_sync(' text')\nsession",
        "model.close()",
    )
    notebook = execute(path, tmp_path / "out")
    lines = printed(notebook).splitlines()
    assert lines == ["scores True", "tokens 4 True", "many [0, 1, 2] [0, 1, 2]", "lens True", "run_sync 9"]
    assert [output["output_type"] for output in outputs(notebook) if "data" in output] == ["execute_result"]


@pytest.mark.slow
def test_interrupting_a_cell_keeps_the_results_so_far(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        "import os, signal\n"
        "from runtime import load\n"
        "model = load('x', backend='fake')\n"
        "texts = [f'text {number}' for number in range(200)]\n"
        "def stop(done, total):\n"
        "    if done == 5:\n"
        "        os.kill(os.getpid(), signal.SIGINT)  # as the button of a notebook does",
        "# fails: of a coroutine\n"
        "awaited = []\n"
        "async for number, run in model.score_many(texts, batch=2, progress=stop):\n"
        "    awaited.append(number)",
        "# fails: of a blocking member\n"
        "blocking = []\n"
        "for number, run in model.score_many_sync(texts, batch=2, progress=stop):\n"
        "    blocking.append(number)",
        "print(5 <= len(awaited) < 200, awaited == list(range(len(awaited))))\n"
        "print(4 <= len(blocking) < 200, blocking == list(range(len(blocking))))\n"
        "rest = {number for number, run in model.score_many_sync(texts, skip=set(awaited))}\n"
        "print(rest == set(range(200)) - set(awaited))\n"
        "model.close()",
    )
    notebook = execute(path, tmp_path / "out")
    assert printed(notebook) == "True True\nTrue True\nTrue\n"
    assert len([output for output in outputs(notebook) if output["output_type"] == "error"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["hf", "mlx"])
def test_loading_a_model_in_a_cell_prints_nothing(tmp_path: Path, backend: str) -> None:
    # a kernel without ipywidgets, about which tqdm warns at its import
    source = str(tiny_path("llama"))
    cell = f"from runtime import load\nwith load({source!r}, {backend!r}) as model: print(len(model.byte_vocab) > 0)"
    (tmp_path / "executed").mkdir()
    notebook = execute(written(tmp_path, cell), tmp_path / "executed")
    assert [(output.get("name"), "".join(output.get("text", ()))) for output in outputs(notebook)] == [("stdout", "True\n")]
