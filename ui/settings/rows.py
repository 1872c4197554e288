"""The settings in the window, as one table: page and words. Values and effect are those of `SETTING_RULES`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QSignalBlocker, Qt
from PySide6.QtWidgets import QSizePolicy, QSpinBox, QWidget

from ui.port import QT_TRANSLATE_NOOP, SETTING_RULES, AppSettings, SettingsView, translate
from ui.theme.fonts import interface_font
from ui.theme.text_size import panel_width
from ui.transcript.measure import Measure
from ui.widgets.controls import LINE_PX, Combo, grid, words
from ui.widgets.labels import Label, plain_tooltip
from ui.widgets.visible import one_line
from ui.window.legend import name_of

_TEXT = SETTING_RULES["text_percent"]
FIELD_PX = 150  # least width of a field
PAGES = ENGINE, MEMORY, GENERATION, APPEARANCE = "engine", "memory", "generation", "appearance"
OWN_TEMPLATE = "choose-a-file"  # among the chat formats, none of which has this name
COLOURS = "colours"  # a row of the window's state, not of `AppSettings`

Changed = Callable[[str, object], None]


TITLES = {"": QT_TRANSLATE_NOOP("SettingsWindow", "none"), "auto": QT_TRANSLATE_NOOP("SettingsWindow", "automatic")}
PLACES = {
    "none": QT_TRANSLATE_NOOP("SettingsWindow", "in memory"),
    "disk": QT_TRANSLATE_NOOP("SettingsWindow", "on disk, where they do not fit"),
}
LOOKS = {
    "system": QT_TRANSLATE_NOOP("SettingsWindow", "as the system"),
    "light": QT_TRANSLATE_NOOP("SettingsWindow", "light"),
    "dark": QT_TRANSLATE_NOOP("SettingsWindow", "dark"),
    "normal": QT_TRANSLATE_NOOP("SettingsWindow", "normal"),
    "high": QT_TRANSLATE_NOOP("SettingsWindow", "high"),
    "reduced": QT_TRANSLATE_NOOP("SettingsWindow", "reduced"),
    "half": QT_TRANSLATE_NOOP("SettingsWindow", "half strength"),
    "full": QT_TRANSLATE_NOOP("SettingsWindow", "full strength"),
    "none": QT_TRANSLATE_NOOP("SettingsWindow", "none"),
    "off": QT_TRANSLATE_NOOP("SettingsWindow", "off"),
    "on": QT_TRANSLATE_NOOP("SettingsWindow", "on"),
}
TITLED = {
    "words": QT_TRANSLATE_NOOP("SettingsWindow", "the first words"),
    "model": QT_TRANSLATE_NOOP("SettingsWindow", "by the model"),
}
FORMATS = {
    "auto": QT_TRANSLATE_NOOP("SettingsWindow", "the model's own"),
    "none": QT_TRANSLATE_NOOP("SettingsWindow", "none: continue text"),
    OWN_TEMPLATE: QT_TRANSLATE_NOOP("SettingsWindow", "a template of your own…"),
}


def _title(titles: Mapping[str, str]) -> Callable[[str], str]:
    """A function that returns the words of a choice, or the choice itself if it has none."""
    return lambda choice: translate("SettingsWindow", titles[choice]) if choice in titles else choice


@dataclass(frozen=True, slots=True)
class Number:
    """A whole number. With `auto` (words), 0 is stored as None, which leaves the choice to the engine.

    One `unit` in the field is `factor` in `AppSettings`.
    """

    most: int
    least: int = 0
    step: int = 1
    auto: str = ""
    unit: str = ""
    factor: int = 1

    def shown(self, value: int | None) -> int:
        """The number shown in the field for a stored value."""
        return round((value or 0) / self.factor)

    def stored(self, shown: int) -> int | None:
        """The value to store for a number in the field."""
        return None if self.auto and not shown else shown * self.factor


@dataclass(frozen=True, slots=True)
class SettingRow:
    """A row of the table.

    Attributes:
        page: Its page.
        name: The field of `AppSettings`.
        label: Its name in the window.
        hint: A line below.
        number: How a number is shown; None: the setting is one of several choices.
        offered: The choices; by default those of the view under `name`, else those of the rule.
        held: The choice in force; by default the field `name`.
        title: The words of a choice.
    """

    page: str
    name: str
    label: str
    hint: str = ""
    number: Number | None = None
    offered: Callable[[SettingsView], Sequence[str]] | None = None
    held: Callable[[AppSettings], str] | None = None
    title: Callable[[str], str] = _title(TITLES)  # noqa: RUF009  # a function without state


MEGABYTES = Number(10_000_000, step=256, auto=TITLES["auto"], unit="MB", factor=1_000_000)


def _formats(view: SettingsView) -> Sequence[str]:
    file = view.values.chat_template_file
    return (*view.choices.get("chat_format", ()), *([file] if file else []), OWN_TEMPLATE)


def _format_title(name: str) -> str:
    if Path(name).is_absolute():
        return translate("SettingsWindow", "your template: {0}").format(Path(name).name)
    return _title(FORMATS)(name)


# fmt: off
SETTINGS = (
    SettingRow(ENGINE, "backend", QT_TRANSLATE_NOOP("SettingsWindow", "Engine")),
    SettingRow(ENGINE, "device", QT_TRANSLATE_NOOP("SettingsWindow", "Device")),
    SettingRow(ENGINE, "dtype", QT_TRANSLATE_NOOP("SettingsWindow", "Precision")),
    SettingRow(ENGINE, "weights", QT_TRANSLATE_NOOP("SettingsWindow", "Precision of the weights"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "Lower precision is faster on the CPU (hf) and changes probabilities slightly; the change is shown beside the model.")),
    SettingRow(ENGINE, "chat_format", QT_TRANSLATE_NOOP("SettingsWindow", "Chat format"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "For models without a chat template, or in place of theirs. A template of your own runs in a sandbox, with limits."),
        offered=_formats, held=lambda values: values.chat_template_file or values.chat_format, title=_format_title),
    SettingRow(ENGINE, "offload", QT_TRANSLATE_NOOP("SettingsWindow", "Weights"), hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "Layers on disk are read again for every token: slow, for models larger than memory (hf)."), title=_title(PLACES)),
    SettingRow(ENGINE, "context_length", QT_TRANSLATE_NOOP("SettingsWindow", "Context"),
        number=Number(10_000_000, step=1024, auto=FORMATS["auto"], unit=QT_TRANSLATE_NOOP("SettingsWindow", "tokens"))),
    SettingRow(ENGINE, "threads", QT_TRANSLATE_NOOP("SettingsWindow", "Threads"), number=Number(1024, auto=TITLES["auto"])),
    SettingRow(ENGINE, "draft_model", QT_TRANSLATE_NOOP("SettingsWindow", "Draft model"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "Drafts tokens in sessions that use speculation; it must have the same vocabulary.")),
    SettingRow(MEMORY, "kv_cache_bytes", QT_TRANSLATE_NOOP("SettingsWindow", "KV in memory"), number=MEGABYTES,
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "What the model has read is kept up to this limit. A lower limit drops the least recently used at once.")),
    SettingRow(MEMORY, "disk_bytes", QT_TRANSLATE_NOOP("SettingsWindow", "KV on disk"), number=MEGABYTES,
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "Lets sessions reopen without being read again. The least recently used goes first; conversations are never deleted.")),
    SettingRow(GENERATION, "preset", QT_TRANSLATE_NOOP("SettingsWindow", "Preset"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "For sessions without a preset of their own. Presets are saved under a session's Sampling."),
        title=lambda name: translate("Presets", name or "Elsewise's own")),
    SettingRow(GENERATION, "titles", QT_TRANSLATE_NOOP("SettingsWindow", "Session titles"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow", "By the model: it is asked for a title after the first answer of a session."),
        title=_title(TITLED)),
    SettingRow(APPEARANCE, "scheme", QT_TRANSLATE_NOOP("SettingsWindow", "Colours"), title=_title(LOOKS)),
    SettingRow(APPEARANCE, "contrast", QT_TRANSLATE_NOOP("SettingsWindow", "Contrast"), title=_title(LOOKS)),
    SettingRow(APPEARANCE, "motion", QT_TRANSLATE_NOOP("SettingsWindow", "Motion"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow", "Reduced: nothing fades."), title=_title(LOOKS)),
    SettingRow(APPEARANCE, "text_percent", QT_TRANSLATE_NOOP("SettingsWindow", "Text size"),
        number=Number(_TEXT.most, least=_TEXT.least, step=10, unit="%")),
    SettingRow(APPEARANCE, COLOURS, QT_TRANSLATE_NOOP("SettingsWindow", "Colour tokens by"),
        title=lambda name: name_of(Measure(name))),
    SettingRow(APPEARANCE, "own_colours", QT_TRANSLATE_NOOP("SettingsWindow", "Colours in your own text"), title=_title(LOOKS)),
    SettingRow(APPEARANCE, "developer", QT_TRANSLATE_NOOP("SettingsWindow", "Developer view"),
        hint=QT_TRANSLATE_NOOP("SettingsWindow",
        "Adds the inspector's Cache tab, Session > Clear Cache, and under every answer the tokens reused and computed."),
        title=_title(LOOKS)),
)
# fmt: on


class SettingRows(QWidget):
    """The rows of one page in three columns: name, value, *now* or *after reload*; a line below may say more.

    Args:
        page: The page.
        changed: Called with the name and the value of a setting when the user changes it.
    """

    def __init__(self, page: str, changed: Changed) -> None:
        super().__init__()
        self._changed = changed
        self._settings = [setting for setting in SETTINGS if setting.page == page]
        self._grid = grid(14, 7, self)
        self._grid.setColumnStretch(1, 1)
        self._line = 0
        self.when: dict[str, Label] = {}
        self.combos: dict[str, Combo] = {}
        self.numbers: dict[str, QSpinBox] = {}
        for setting in self._settings:
            self._add(setting)

    def show_settings(self, view: SettingsView, *, keep: QWidget | None = None) -> None:
        """Shows the settings in force without a call of `changed`; the field `keep` is not touched."""
        for setting in self._settings:
            if keep is not None and keep in (self.numbers.get(setting.name), self.combos.get(setting.name)):
                continue
            if setting.number is not None:
                field = self.numbers[setting.name]
                with QSignalBlocker(field):
                    field.setValue(setting.number.shown(getattr(view.values, setting.name)))
            elif setting.name != COLOURS:
                held = setting.held(view.values) if setting.held is not None else getattr(view.values, setting.name)
                fixed = SETTING_RULES[setting.name].values
                offered = setting.offered(view) if setting.offered is not None else view.choices.get(setting.name, fixed)
                self._show_choice(setting, offered, held)

    def show_measure(self, measure: Measure) -> None:
        """Shows which measure the colours of tokens show."""
        setting = next(setting for setting in self._settings if setting.name == COLOURS)
        self._show_choice(setting, [each.value for each in Measure], measure.value)

    def _show_choice(self, setting: SettingRow, offered: Sequence[str], held: str) -> None:
        """Shows a choice; it is listed even if it is not offered (any more)."""
        combo = self.combos[setting.name]
        with QSignalBlocker(combo):
            combo.clear()
            for choice in dict.fromkeys([*offered, held]):
                combo.addItem(one_line(setting.title(choice)), choice)
            combo.setCurrentIndex(combo.findData(held))
        combo.setToolTip(plain_tooltip(held if Path(held).is_absolute() else ""))

    def _add(self, setting: SettingRow) -> None:
        label = translate("SettingsWindow", setting.label)
        editor: QWidget
        if setting.number is not None:
            editor = self.numbers[setting.name] = self._number(setting.name, label, setting.number)
        else:
            editor = combo = self.combos[setting.name] = Combo(label)
            combo.activated.connect(lambda place: self._changed(setting.name, combo.itemData(place)))
        reload = setting.name in SETTING_RULES and SETTING_RULES[setting.name].reload
        when = self.tr("after reload") if reload else self.tr("now")
        self.when[setting.name] = Label(when, "faint", interface_font(11.5))
        caption = Label(label, "", interface_font(13))
        caption.setBuddy(editor)
        editor.setMinimumWidth(panel_width(FIELD_PX))
        editor.setSizePolicy(QSizePolicy.Policy.Maximum, QSizePolicy.Policy.Fixed)
        self._grid.addWidget(caption, self._line, 0)
        self._grid.addWidget(editor, self._line, 1, Qt.AlignmentFlag.AlignLeft)
        self._grid.addWidget(self.when[setting.name], self._line, 2)
        self._line += 1
        if setting.hint:
            self._grid.addWidget(words(translate("SettingsWindow", setting.hint), "faint"), self._line, 1, 1, 2)
            self._line += 1

    def _number(self, name: str, label: str, number: Number) -> QSpinBox:
        field = QSpinBox()
        field.setRange(number.least, number.most)
        field.setSingleStep(number.step)
        field.setSpecialValueText(translate("SettingsWindow", number.auto) if number.auto else "")
        field.setSuffix(f" {translate('SettingsWindow', number.unit)}" if number.unit else "")
        field.setGroupSeparatorShown(True)
        field.setKeyboardTracking(False)
        field.setFont(interface_font(LINE_PX))
        field.setAccessibleName(label)
        field.lineEdit().setTextMargins(5, 0, 0, 0)
        field.setFocusPolicy(Qt.FocusPolicy.StrongFocus)  # scrolling past it changes nothing
        field.valueChanged.connect(lambda value: self._changed(name, number.stored(value)))
        return field
