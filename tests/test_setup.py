"""`make setup` with stand-ins for Python, pip and uv: which torch it asks for, and when."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.pages import ROOT

MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
PIP = "-m pip install --quiet "
PYTHON = f"""#!/bin/sh
case "$*" in
  "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/uv" ;;
  "-m pip show "*) test -e torch-is-there ;;
  "{PIP}"*torch*) echo "$*" >> log && touch torch-is-there && exit "${{PIP_ENDS:-0}}" ;;
esac
"""
PLAIN = re.findall(r"^TORCH := (.*)$", MAKEFILE, re.MULTILINE)[0]
CPU, CUDA = f"{PLAIN} --index-url https://example.org/cpu", f"{PLAIN} --index-url https://example.org/cuda"


class Checkout:
    """A folder with the files that `make setup` reads, and a Python that records which torch pip is asked for."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.ready = root, root / "log", root / ".venv" / ".ready"
        (root / "packaging").mkdir()
        (root / "Makefile").write_text(MAKEFILE, "utf-8")
        shutil.copy(ROOT / "packaging" / "setup.sh", root / "packaging")
        (root / "packaging" / "system.sh").write_text("exit 0\n", "utf-8")
        (root / "requirements.lock").touch()
        (root / "pyproject.toml").touch()
        (root / "python").write_text(PYTHON, "utf-8")
        (root / "python").chmod(0o755)

    def make(self, torch: str | None = None, *, pip_ends: int = 0) -> list[str]:
        """The torch requests of `make setup` to pip, with TORCH on the command line or without."""
        self.log.write_text("", "utf-8")
        given = [] if torch is None else [f"TORCH={torch}"]
        done = subprocess.run(
            ["make", "setup", f"PYTHON={self.root / 'python'}", *given],
            cwd=self.root,
            env={"PATH": os.environ["PATH"], "PIP_ENDS": str(pip_ends)},  # not the flags of a make that runs this test
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode == 0) == (pip_ends == 0), done.stderr
        return [line.removeprefix(PIP) for line in self.log.read_text("utf-8").splitlines()]

    def change_lock(self) -> None:
        """Changes the requirements, as a pull may."""
        os.utime(self.ready, (0, 0))


def anew(torch: str) -> list[str]:
    return [f"--no-deps --force-reinstall {torch}", torch]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_a_different_torch_on_the_command_line_replaces_the_installed_one(checkout: Checkout) -> None:
    assert checkout.make() == [PLAIN]
    assert checkout.make() == []
    for torch in (CPU, CUDA, PLAIN):  # all of one version, so that pip alone would keep the installed one
        assert checkout.make(torch) == anew(torch)
        assert checkout.make(torch) == []


def test_a_chosen_torch_wheel_stays_when_no_other_is_given(checkout: Checkout) -> None:
    assert checkout.make(CPU) == [CPU]
    assert checkout.make() == []
    # a change of the requirements requests only the version, which the wheel has
    checkout.change_lock()
    assert checkout.make() == [PLAIN]
    assert checkout.make(CPU) == []


def test_an_environment_without_a_record_of_its_torch_replaces_it_once_when_one_is_given(checkout: Checkout) -> None:
    checkout.make()
    for torch, asked in ((None, [PLAIN]), (CPU, anew(CPU))):
        (checkout.root / ".venv" / ".torch").unlink()  # the record of the installed one
        checkout.change_lock()
        assert checkout.make(torch) == asked
        assert checkout.make(torch) == []


def test_a_torch_that_could_not_be_fetched_is_requested_again(checkout: Checkout) -> None:
    checkout.make()
    assert checkout.make(CPU, pip_ends=1) == anew(CPU)[:1]
    assert checkout.make() == [PLAIN]  # the environment is not ready
    assert checkout.make(CPU) == anew(CPU)
