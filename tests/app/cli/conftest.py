from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from app.cli import main


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str


Elsewise = Callable[..., Done]
EACH = """  # of a process that runs several commands; a line of JSON for each: exit code, stdout, stderr, engine libraries
import contextlib, io, json, sys
from app.cli import main

for arguments in json.loads(sys.argv[1]):
    sys.argv, out, err, code = ["elsewise", *arguments], io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, out.getvalue(), err.getvalue(), sorted({"torch", "mlx"} & set(sys.modules))]))
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Lines for `ask --batch`, not written yet."""
    return tmp_path / "questions.jsonl"


@pytest.fixture
def elsewise(data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Elsewise:
    """The command line in this process, on a data folder of its own."""

    def run(*arguments: str) -> Done:
        monkeypatch.setattr(sys, "argv", ["elsewise", "--data-dir", str(data), *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        assert "Traceback" not in captured.err
        return Done(code, captured.out, captured.err)

    return run


def stdin_of(data: bytes) -> io.TextIOWrapper:
    """A stdin with these bytes, with the attributes that it has in a process."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="\n")


@pytest.fixture(autouse=True)
def environment_as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The commands set the environment for the libraries; the next test must not see it."""
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "MLX_LM_TRUST_REMOTE_CODE"):
        monkeypatch.setenv(name, "1")
    level = logging.getLogger().level
    yield
    logging.getLogger().setLevel(level)
