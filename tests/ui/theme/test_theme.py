"""Fonts, icons, colours."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import resources

import pytest
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QFontDatabase, QFontInfo, QFontMetricsF, QStyleHints
from PySide6.QtWidgets import QApplication, QWidget

from ui import DARK, HIGH_DARK, HIGH_LIGHT, LIGHT, Palette, Scheme, apply_theme
from ui.theme import current_theme
from ui.theme.fonts import faces_for_scripts, interface_font, mono_font, scaled
from ui.theme.icons import icon
from ui.theme.style import style_sheet
from ui.theme.text_size import resize_text
from ui.widgets.controls import Check, Combo
from ui.widgets.labels import Label
from ui.window.status import EngineDot
from ui.window.topbar import ModelChip


def test_the_shipped_faces_are_used_with_tabular_figures(app: QApplication) -> None:
    assert {"Inter", "JetBrains Mono"} <= set(QFontDatabase.families())
    font = interface_font(13)
    assert QFontInfo(font).family() == "Inter"
    assert QFontInfo(mono_font()).family() == "JetBrains Mono"
    metrics = QFontMetricsF(font)
    assert metrics.horizontalAdvance("1111") == metrics.horizontalAdvance("8888")
    assert interface_font(weight=QFont.Weight.DemiBold).weight() == QFont.Weight.DemiBold


def test_fonts_for_other_scripts_are_named_only_if_they_are_installed(app: QApplication) -> None:
    assert faces_for_scripts({"Inter", "Garuda", "Noto Sans Hebrew", "Segoe UI"}) == ["Garuda", "Segoe UI", "Noto Sans Hebrew"]
    assert faces_for_scripts(()) == []
    assert set(interface_font().families()) - set(QFontDatabase.families()) <= {
        "Noto Sans",
        "Apple Color Emoji",
        "Noto Color Emoji",
    }


def test_fonts_and_icons_have_their_licences_and_stay_small() -> None:
    fonts = list((resources.files("resources") / "fonts").iterdir())
    size = sum(len(file.read_bytes()) for file in fonts)
    assert size < 3_000_000
    for face in ("Inter", "JetBrainsMono"):
        assert "SIL OPEN FONT LICENSE" in (resources.files("resources") / "fonts" / f"{face}-LICENSE.txt").read_text()
    assert "ISC License" in (resources.files("resources") / "icons" / "LICENSE.txt").read_text()


ICONS = sorted(file.name for file in (resources.files("resources") / "icons").iterdir() if file.name.endswith("svg"))


@pytest.mark.parametrize("file", ICONS)
def test_every_icon_is_drawn_in_the_requested_colour(app: QApplication, file: str) -> None:
    image = icon(file.removesuffix(".svg"), "#0b6b5a").pixmap(16, 16).toImage()
    inked = [c for x in range(16) for y in range(16) if (c := image.pixelColor(x, y)).alpha() > 100]
    assert inked
    off = max(abs(got - asked) for c in inked for got, asked in zip((c.red(), c.green(), c.blue()), (11, 107, 90), strict=True))
    assert off <= 3  # premultiplied colours are rounded


PALETTES = [LIGHT, DARK, HIGH_LIGHT, HIGH_DARK]


@pytest.mark.parametrize("palette", PALETTES)
def test_the_style_sheet_uses_the_palettes_colours_only(palette: Palette) -> None:
    sheet = style_sheet(palette)
    known = {getattr(palette, name) for name in Palette.__struct_fields__ if name not in ("dark", "surprise")} | set(
        palette.surprise
    )
    strange = set(re.findall(r"#[0-9a-f]{6}", sheet)) - known
    assert len(strange) == 1  # the hovered Send button
    assert "$" not in sheet


def test_the_single_theme_emits_changed_only_for_another_palette(app: QApplication) -> None:
    theme = apply_theme(app, Scheme.LIGHT)
    assert theme is current_theme()
    seen = list[Palette]()
    theme.changed.connect(seen.append)
    apply_theme(app, Scheme.DARK)
    apply_theme(app, Scheme.DARK)
    apply_theme(app, Scheme.LIGHT)
    theme.changed.disconnect(seen.append)
    assert seen == [DARK, LIGHT]


@pytest.mark.slow
def test_the_layout_runs_left_to_right_also_on_a_right_to_left_system() -> None:
    # in a separate process, with a right-to-left system (Qt's -reverse)
    code = (
        "import sys; from PySide6.QtCore import Qt; from PySide6.QtWidgets import QApplication; from ui import apply_theme\n"
        "app = QApplication(['elsewise', '-reverse']); before = app.layoutDirection(); apply_theme(app)\n"
        "sys.exit(not (before is Qt.LayoutDirection.RightToLeft and app.layoutDirection() is Qt.LayoutDirection.LeftToRight))"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


@pytest.mark.parametrize(("system", "palette"), [(Qt.ColorScheme.Light, LIGHT), (Qt.ColorScheme.Dark, DARK)])
def test_the_system_scheme_gives_the_light_or_the_dark_palette(
    app: QApplication, system: Qt.ColorScheme, palette: Palette, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(QStyleHints, "colorScheme", lambda _: system)
    assert apply_theme(app, Scheme.SYSTEM).palette is palette
    apply_theme(app, Scheme.LIGHT)


def test_widgets_not_shown_yet_get_the_text_size_after_a_change_of_scheme_too(app: QApplication) -> None:
    window = QWidget()
    panel = QWidget(window)
    label = Label("words", "soft", interface_font(12.5))
    label.setParent(panel)
    at_100 = label.font().pointSizeF()
    panel.hide()
    apply_theme(app, Scheme.DARK)
    resize_text(app, 2.0)
    window.show()
    panel.show()
    shown = label.font().pointSizeF()
    resize_text(app, 1.0)
    apply_theme(app, Scheme.LIGHT)
    window.deleteLater()
    assert shown == 2 * at_100


def test_painted_parts_grow_with_the_text(app: QApplication) -> None:
    dot, chip, combo = EngineDot(), ModelChip(), Combo("which")
    combo.addItem("one")

    def arrow() -> int:
        """The rows at the right end of the combo with more than one colour: frame and arrow."""
        combo.resize(combo.sizeHint())
        image = combo.grab().toImage()
        right = range(image.width() - 3 - scaled(20), image.width() - 3)
        rows = [{image.pixel(x, y) for x in right} for y in range(3, image.height() - 3)]
        return sum(len(row) > 1 for row in rows)

    small = (dot.width(), chip.iconSize().width(), arrow())
    resize_text(app, 2.0)
    large = (dot.width(), chip.iconSize().width(), arrow())
    resize_text(app, 1.0)
    assert large[:2] == (2 * small[0], 2 * small[1])
    assert large[2] >= 1.6 * small[2] > 0
    for part in (dot, chip, combo):
        part.deleteLater()


@pytest.mark.parametrize("scheme", [Scheme.LIGHT, Scheme.DARK])
def test_a_check_box_is_visible_on_its_background(app: QApplication, scheme: Scheme) -> None:
    palette = apply_theme(app, scheme).palette
    box = Check("Keep loaded")
    box.resize(box.sizeHint())

    def colours() -> set[str]:
        image = box.grab().toImage()
        return {image.pixelColor(x, y).name() for x in range(16) for y in range(image.height())}

    assert palette.soft in colours()
    box.setChecked(True)
    assert palette.accent in colours()
    box.deleteLater()
    apply_theme(app, Scheme.LIGHT)
