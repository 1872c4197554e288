"""The names that `import ui` provides, without loading Qt."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ui


def test_every_name_of_all_exists_and_other_names_raise() -> None:
    assert [name for name in ui.__all__ if getattr(ui, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Window'"):
        ui.Window  # type: ignore[attr-defined]  # noqa: B018  # the type checker reports it too


def test_importing_the_names_of_the_port_loads_no_qt() -> None:
    code = (
        "import sys; from ui import Refusal, TurnView, Workbench; sys.exit(any(m.startswith('PySide6') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
