"""The style sheet and the QPalette, both made from a `Palette`.

Rules address widgets by object name or by the dynamic property `kind`. Fonts are set in code (`theme.fonts`), because a
style sheet supports neither tabular figures nor letter spacing.
"""

from __future__ import annotations

from string import Template

from PySide6.QtGui import QColor, QPalette

from ui.theme.palette import Palette

_SHEET = Template("""
QMainWindow, QWidget#column { background: $window; }
QWidget#bar { background: $sidebar; border: none; border-bottom: 1px solid $hairline; }
QToolBar#unified { background: $sidebar; border: none; padding: 0; spacing: 0; margin: 0; }
QFrame#find { background: $panel; border: none; border-bottom: 1px solid $hairline; }
QWidget#status { background: $sidebar; border: none; border-top: 1px solid $hairline; }
QWidget#sidebar { background: $sidebar; border: none; border-right: 1px solid $hairline; }
QWidget#inspector { background: $panel; border: none; border-left: 1px solid $hairline; }
QWidget#inspector QScrollArea, QWidget#inspector QScrollArea > QWidget > QWidget { background: $panel; border: none; }
QFrame[kind="hairline"] { background: $hairline; border: none; max-height: 1px; min-height: 1px; }

QLabel { color: $text; background: transparent; }
QLabel[kind="soft"], QLabel#status_text { color: $soft; }
QLabel[kind="faint"], QLabel[kind="soft"]:disabled { color: $faint; }
QLabel[kind="accent"] { color: $accent; }

QToolTip { color: $text; background: $card; border: 1px solid $hairline; padding: 4px 6px; }

QLineEdit#search { background: $window; border: 1px solid $hairline; border-radius: 7px; padding: 5px 9px; color: $text;
  placeholder-text-color: $faint;
  selection-background-color: $selection; selection-color: $text; }
QLineEdit#search:focus { border-color: $accent; }
QListView { background: transparent; border: none; outline: none; }
QListWidget#pages::item { padding: 4px 6px; border-radius: 5px; }
QListWidget#pages::item:selected { background: $selection; color: $text; }
QListView QLineEdit { background: $card; color: $text; border: 1px solid $accent; border-radius: 5px; padding: 2px 6px;
  selection-background-color: $selection; selection-color: $text; }

QWidget#chip { background: $window; border: 1px solid $hairline; border-radius: 6px; }
QWidget#chip QLabel, QWidget#chip QToolButton { color: $soft; }
QPushButton#model_chip { background: $window; border: 1px solid $hairline; border-radius: 6px; padding: 3px 9px; color: $soft;
  text-align: left; }
QPushButton#model_chip:hover { color: $text; border-color: $faint; }
QPushButton#model_chip:focus { color: $text; border-color: $accent; }
QPushButton#model_chip::menu-indicator { image: none; width: 0; }
QToolButton { background: transparent; border: none; border-radius: 5px; padding: 4px; color: $soft; }
QToolButton:hover { background: $selection; color: $text; }
QToolButton:focus { border: 1px solid $accent; padding: 3px; }
QToolButton:disabled { color: $faint; }
QToolButton::menu-indicator { image: none; }
QToolButton[kind="step"] { padding: 0 2px; border-radius: 4px; }
QToolButton[kind="step"]:focus { padding: 0 1px; }

QWidget#segments { background: $window; border: 1px solid $hairline; border-radius: 7px; }
QWidget#segments QPushButton { background: transparent; border: 1px solid transparent; padding: 3px 11px; color: $text; }
QWidget#segments QPushButton:disabled { color: $faint; }
QWidget#segments QPushButton:checked { background: $accent; color: $on_accent; }
QWidget#segments QPushButton:focus { border-color: $accent; }
QWidget#segments QPushButton:checked:focus { border-color: $text; }
QWidget#segments QPushButton#segment_first { border-top-left-radius: 6px; border-bottom-left-radius: 6px; }
QWidget#segments QPushButton#segment_last { border-top-right-radius: 6px; border-bottom-right-radius: 6px; }

QWidget#tabs { border: none; border-bottom: 1px solid $hairline; }
QPushButton[kind="tab"] { background: transparent; border: none; border-bottom: 2px solid transparent; padding: 4px 0 8px 0;
  color: $soft; }
QPushButton[kind="tab"]:hover { color: $text; }
QPushButton[kind="tab"]:checked { color: $text; border-bottom-color: $accent; }
QPushButton[kind="tab"]:focus { color: $accent; }

QTextEdit#comparison { background: transparent; border: none; border-left: 2px solid transparent; padding-left: 6px;
  color: $text; selection-background-color: $bar_rest; selection-color: $text; }
QListWidget#pages, QScrollArea#shortcuts { border: 1px solid transparent; }
QListWidget#pages:focus, QScrollArea#shortcuts:focus { border-color: $accent; }
QTextEdit#comparison:focus { border-left-color: $accent; }
QFrame#composer { background: $card; border: 1px solid $hairline; border-radius: 11px; }
QFrame#composer[focused="true"] { border-color: $bar_rest; }
QFrame#composer QPlainTextEdit { background: transparent; border: none; color: $text;
  placeholder-text-color: $faint; selection-background-color: $bar_rest;
  selection-color: $text; }
QPushButton#send { background: $accent; color: $on_accent; border: 1px solid $accent; border-radius: 7px; padding: 4px 13px; }
QPushButton#send:hover { background: $accent_hover; }
QPushButton#send:focus { border-color: $text; }
QPushButton#send:disabled { background: $code; border-color: $hairline; color: $faint; }
QPushButton[kind="quiet"] { background: $window; border: 1px solid $hairline; border-radius: 7px;
  padding: 4px 11px; color: $text; }
QPushButton[kind="quiet"]:hover { border-color: $faint; }
QPushButton[kind="quiet"]:focus { border-color: $accent; }
QPushButton[kind="link"] { background: transparent; border: none; border-bottom: 1px solid transparent; padding: 2px 0;
  color: $accent; }
QPushButton[kind="link"]:hover, QPushButton[kind="link"]:focus { border-bottom-color: $accent; }

QPushButton[kind="plain"] { background: transparent; border: none; border-bottom: 1px solid transparent; padding: 2px 0;
  color: $soft; }
QPushButton[kind="plain"]:hover { color: $text; border-bottom-color: $faint; }
QPushButton[kind="plain"]:focus { color: $text; border-bottom-color: $accent; }
QPushButton[kind="plain"]:disabled { color: $faint; }

QFrame#popover { background: $card; border: 1px solid $bar_rest; border-radius: 10px; }
QFrame#popover QWidget#page, QFrame#popover QScrollArea, QFrame#popover QStackedWidget { background: transparent;
  border: none; }
QWidget#settings, QWidget#settings QScrollArea, QWidget#settings QWidget#page { background: $window; border: none; }
QLabel[kind="warm"] { color: $warm; }
QFrame[kind="card"] { background: $code; border: 1px solid $hairline; border-radius: 8px; }
QLineEdit[kind="field"], QPlainTextEdit[kind="field"], QComboBox, QAbstractSpinBox { background: $window; color: $text;
  border: 1px solid $hairline; border-radius: 6px; padding: 3px 7px; placeholder-text-color: $faint;
  selection-background-color: $bar_rest; selection-color: $text; }
QLineEdit[kind="field"]:focus, QPlainTextEdit[kind="field"]:focus, QComboBox:focus, QAbstractSpinBox:focus {
  border-color: $accent; }
QLineEdit[kind="field"]:disabled, QPlainTextEdit[kind="field"]:disabled, QComboBox:disabled, QAbstractSpinBox:disabled {
  color: $faint; }
QComboBox QAbstractItemView { background: $card; color: $text; border: solid $hairline; border-width: 0 1px; padding: 2px 4px;
  outline: none;
  selection-background-color: $selection; selection-color: $text; }
QComboBox::drop-down { border: none; width: 18px; }
QAbstractSpinBox::up-button, QAbstractSpinBox::down-button { width: 0; border: none; }
QCheckBox, QRadioButton { color: $text; spacing: 7px; }
QCheckBox:focus, QRadioButton:focus { color: $accent; }
QPushButton[kind="quiet"]:disabled { color: $faint; }
QPushButton[kind="link"]:disabled { color: $faint; }

QFrame[kind="column"] { background: transparent; border: none; border-left: 1px solid $hairline; }
QWidget#columns { background: $window; }
QFrame[kind="notice"] { background: $notice; border: none; border-radius: 8px; }
QWidget#settings > QFrame[kind="notice"] { margin: 0 12px 12px 12px; }
QFrame[kind="toast"] { background: $card; border: 1px solid $bar_rest; border-radius: 8px; }
QFrame[kind="undo"], QFrame[kind="done"] { background: $selection; border: none; border-radius: 6px; }

QMenu { background: $card; color: $text; border: 1px solid $hairline; padding: 4px; }
QMenu::item { padding: 5px 22px 5px 26px; border-radius: 4px; }
QMenu::item:selected { background: $selection; }
QMenu::item:disabled { color: $faint; }
QMenu::separator { height: 1px; background: $hairline; margin: 4px 6px; }
QMenu::indicator { width: 14px; height: 14px; left: 7px; }

QAbstractScrollArea::corner { background: transparent; border: none; }
QScrollBar:vertical { background: transparent; width: 10px; margin: 0; }
QScrollBar::handle:vertical { background: $hairline; border-radius: 3px; min-height: 32px; margin: 2px; }
QScrollBar::handle:vertical:hover { background: $faint; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0; }
QScrollBar::handle:horizontal { background: $hairline; border-radius: 3px; min-width: 32px; margin: 2px; }
QScrollBar::add-line, QScrollBar::sub-line, QScrollBar::add-page, QScrollBar::sub-page { background: none; border: none;
  width: 0; height: 0; }
QSlider::groove:horizontal { background: $hairline; height: 3px; border-radius: 1px; }
QSlider::sub-page:horizontal { background: $accent; height: 3px; border-radius: 1px; }
QSlider::handle:horizontal { background: $card; border: 1px solid $accent; width: 9px; height: 9px; margin: -4px 0;
  border-radius: 5px; }
QSlider::handle:horizontal:hover { background: $selection; }
QSlider::sub-page:horizontal:disabled { background: $hairline; }
QSlider::handle:horizontal:disabled { border-color: $faint; }
QSlider::handle:horizontal:focus { background: $accent; }
QSplitter::handle { background: transparent; }
""")


def style_sheet(palette: Palette) -> str:
    """The style sheet of the whole app."""
    weakest = palette.surprise[1]
    colours = {name: getattr(palette, name) for name in Palette.__struct_fields__ if name not in ("dark", "surprise")}
    accent_hover = QColor(palette.accent).lighter(112).name()
    return _SHEET.substitute(colours, accent_hover=accent_hover, notice=weakest)


def qt_palette(palette: Palette) -> QPalette:
    """The same colours for Qt's own style."""
    role = QPalette.ColorRole
    made = QPalette()
    for places, colour in (
        ((role.Window,), palette.window),
        ((role.Base, role.Button, role.AlternateBase), palette.card),
        ((role.ToolTipBase,), palette.card),
        ((role.Text, role.WindowText, role.ButtonText, role.ToolTipText, role.HighlightedText), palette.text),
        ((role.Highlight,), palette.selection),
        ((role.PlaceholderText, role.Mid), palette.faint),
        ((role.Link, role.Accent), palette.accent),
        ((role.Light, role.Midlight, role.Dark, role.Shadow), palette.hairline),
    ):
        for place in places:
            made.setColor(place, QColor(colour))
    for place in (role.Text, role.WindowText, role.ButtonText):
        made.setColor(QPalette.ColorGroup.Disabled, place, QColor(palette.faint))
    return made
