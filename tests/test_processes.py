"""Children start from an interpreter and, in a bundle, from its executable; here a script replaces the executable."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from app.names import OURS
from resources.processes import child_command, start_in_bundle
from tests.pages import ROOT
from tests.runtime.loading.gguf_files import small_llama

PATIENCE_SECONDS = 120
EVERY_CHILD = """
import asyncio
import sys
from pathlib import Path
from types import SimpleNamespace

from app.block_files import apart
from runtime import Grammar, import_model, spawn
from runtime.loading.child_process import Child
from runtime.text.template import ChatTemplate

async def shape():
    async with await spawn("mock", backend="mock") as engine:
        return (await engine.next_token_logprobs([1, 2])).ndim

folder = Path(sys.argv[1])
print("converter:", import_model(folder / "small.gguf", "small").path.name)
print("grammar:", Grammar.regex("yes|no").label)
print("template:", ChatTemplate("{{ messages[0].content }}", {}).render([{"role": "user", "content": "hello"}]))
print("engine:", asyncio.run(shape()))
with Child("runtime.hub.child", order=b"{}\\n") as hub:  # an order without a task
    print("hub:", list(hub.lines()), hub.last_error())
try:
    apart(folder / "none.elsewise", folder / "blocks.kv", [b"key"], budget=1 << 20)
except OSError as fault:
    print("blocks:", fault.strerror)
"""


def bundle(folder: Path) -> Path:
    """An executable as PyInstaller's: `sys.frozen`, its own path as `sys.executable`, no ``-m``."""
    program = folder / "elsewise"
    lines = (
        f"#!{sys.executable} -I",
        "import sys",
        f"sys.path[:0] = [{str(ROOT)!r}, {str(folder)!r}]",
        f"sys.frozen, sys.executable = True, {str(program)!r}",
        "from app.cli import main",
        "main()",
    )
    program.write_text("\n".join(lines), "utf-8")
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_every_child_starts_from_the_executable_of_a_bundle(tmp_path: Path) -> None:
    # given a bundle, and a script that starts each kind of child
    small_llama().write(tmp_path / "small.gguf")
    (tmp_path / "every_child.py").write_text(EVERY_CHILD, "utf-8")
    program = bundle(tmp_path)
    # when
    done = subprocess.run(
        [program, "--role", "every_child", tmp_path],
        env={"ELSEWISE_MODELS": str(tmp_path / "models"), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    # then
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert said.keys() == {"converter", "grammar", "template", "engine", "hub", "blocks"}
    assert (said["converter"], said["grammar"], said["template"], said["engine"]) == ("small", "regex", "hello", "1")
    assert "missing required field" in said["hub"]  # msgspec's, from the child's last line
    assert "SQLITE_CANTOPEN" in said["blocks"]
    # and a start without a role is the command line
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert shown.stdout.startswith("elsewise, version")


def test_a_child_of_a_bundle_is_its_executable_with_a_role(monkeypatch: pytest.MonkeyPatch) -> None:
    assert child_command("runtime.transport", "3") == [sys.executable, "-P", "-m", "runtime.transport", "3"]
    path = str(ROOT / "runtime/text/template_child.py")
    assert child_command("runtime.text.template_child", isolated=True) == [sys.executable, "-I", path]
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert child_command("runtime.transport", "3") == [sys.executable, "--role", "runtime.transport", "3"]


def test_a_moved_bundle_reports_the_move_instead_of_starting_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "elsewise"))
    with pytest.raises(OSError, match="Elsewise was moved or removed while it was running; quit it, and open it from where"):
        child_command("runtime.transport", "3")


def test_a_moved_bundle_raises_an_import_error_and_keeps_running(monkeypatch: pytest.MonkeyPatch) -> None:
    def extract(name: str, raw: bool = False) -> object:
        if name == "there":
            return name, raw
        raise SystemExit("the archive appears to have been moved")

    archive = SimpleNamespace(extract=extract)  # as PyInstaller's, which ends the process
    monkeypatch.setitem(sys.modules, "pyimod02_importers", SimpleNamespace(pyz_archive=archive))
    start_in_bundle([])
    assert archive.extract("there", True) == ("there", True)
    with pytest.raises(ImportError, match="Elsewise was moved"):
        archive.extract("gone")


def test_only_resources_processes_starts_an_interpreter() -> None:
    named = [
        path.relative_to(ROOT) for name in OURS for path in (ROOT / name).rglob("*.py") if "sys.executable" in path.read_text()
    ]
    assert named == [Path("resources/processes.py")]
