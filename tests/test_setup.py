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
    """A folder with what `make setup` reads, and a Python that writes down what of torch pip is asked for."""

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
        """What pip was asked for by `make setup`, with or without a TORCH of its own."""
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
        """As a pull does that changes the requirements."""
        os.utime(self.ready, (0, 0))


def anew(torch: str) -> list[str]:
    return [f"--no-deps --force-reinstall {torch}", torch]


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_another_torch_of_the_command_line_takes_the_place_of_the_one_that_is_there(checkout: Checkout) -> None:
    assert checkout.make() == [PLAIN]
    assert checkout.make() == []
    for torch in (CPU, CUDA, PLAIN):  # of one version, so that pip alone would leave what is there
        assert checkout.make(torch) == anew(torch)
        assert checkout.make(torch) == []


def test_a_wheel_that_was_chosen_stays_where_no_other_is_given(checkout: Checkout) -> None:
    assert checkout.make(CPU) == [CPU]
    assert checkout.make() == []
    # a change of the requirements asks for the version alone, which the wheel has
    checkout.change_lock()
    assert checkout.make() == [PLAIN]
    assert checkout.make(CPU) == []


def test_an_environment_of_before_exchanges_a_torch_that_is_asked_for_once(checkout: Checkout) -> None:
    checkout.make()
    for torch, asked in ((None, [PLAIN]), (CPU, anew(CPU))):
        (checkout.root / ".venv" / ".torch").unlink()  # nothing says which one is there
        checkout.change_lock()
        assert checkout.make(torch) == asked
        assert checkout.make(torch) == []


def test_a_torch_that_could_not_be_fetched_is_asked_for_again(checkout: Checkout) -> None:
    checkout.make()
    assert checkout.make(CPU, pip_ends=1) == anew(CPU)[:1]
    assert checkout.make() == [PLAIN]  # the environment is not ready
    assert checkout.make(CPU) == anew(CPU)
