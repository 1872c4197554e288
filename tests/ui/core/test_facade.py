"""What `import ui` gives, and what it costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ui


def test_every_name_is_there() -> None:
    assert [name for name in ui.__all__ if getattr(ui, name, None) is None] == []
    with pytest.raises(AttributeError, match="no attribute 'Window'"):
        ui.Window  # type: ignore[attr-defined]  # noqa: B018  # the type checker knows that too


def test_the_ports_names_come_without_qt() -> None:
    code = (
        "import sys; from ui import Refusal, TurnView, Workbench; sys.exit(any(m.startswith('PySide6') for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
