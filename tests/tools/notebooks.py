"""Executes the notebooks of the documentation on a kernel of their own: `python -m tests.tools.notebooks FOLDER [NOTEBOOK...]`.

Writes each executed notebook and the last picture of it, `<name>.ipynb` and `<name>.png`, into the folder; into the folder of
the notebooks themselves only the pictures, because notebooks are stored without outputs.
"""

from __future__ import annotations

import base64
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "docs" / "notebooks"
CELL_SECONDS = 240


def execute(path: Path, scratch: Path) -> Any:
    """The notebook with its outputs, as the kernel of this interpreter gives them.

    Args:
        path: The notebook.
        scratch: Where kernel and libraries keep their files; no port is opened.

    Raises:
        nbclient.exceptions.CellExecutionError: A cell failed.
    """
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=CELL_SECONDS, resources={"metadata": {"path": str(ROOT)}})
    manager = client.create_kernel_manager()
    manager.transport, manager.connection_file = "ipc", str(scratch / "kernel.json")
    own = {"IPYTHONDIR": str(scratch / "ipython"), "MPLCONFIGDIR": str(scratch / "matplotlib")}
    return client.execute(env={**os.environ, **own})


def last_picture(notebook: Any) -> bytes | None:
    """The last PNG of the outputs; None if there is none."""
    found = [
        output["data"]["image/png"]
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", ())
    ]
    return base64.b64decode(found[-1]) if found else None


def main(folder: Path, paths: list[Path]) -> None:
    """Executes the notebooks and writes the results."""
    import nbformat

    folder.mkdir(exist_ok=True)
    for path in paths:
        with tempfile.TemporaryDirectory() as scratch:
            executed = execute(path, Path(scratch))
        if folder.resolve() != NOTEBOOKS:
            nbformat.write(executed, folder / path.name)
        picture = last_picture(executed)
        if picture is not None:
            (folder / f"{path.stem}.png").write_bytes(picture)


if __name__ == "__main__":
    main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]] or sorted(NOTEBOOKS.glob("*.ipynb")))
