from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.transport.child import EngineLimits, Watchdog

LIMITS = EngineLimits(step_seconds=30, silence_seconds=20)


def _watchdog(steps: int = 5, phase: str = "step") -> Watchdog:
    watchdog = Watchdog(LIMITS, loading_seconds=100)
    watchdog.message_received()
    watchdog.beat(steps, phase)
    return watchdog


def _breathing(watchdog: Watchdog, seconds: int, steps: int, phase: str) -> str | None:
    """Beats every second, without progress."""
    for _ in range(seconds):
        watchdog.message_received()
        watchdog.beat(steps, phase)
        if (reason := watchdog.elapse(1)) is not None:
            return reason
    return None


def test_a_step_that_does_not_end_is_a_hang() -> None:
    assert _breathing(_watchdog(), 30, 5, "step") is None
    assert _breathing(_watchdog(), 31, 5, "step") == "step 5 took more than 30 s"


def test_steps_that_move_are_none() -> None:
    watchdog = _watchdog()
    assert all(_breathing(watchdog, 25, steps, "step") is None for steps in range(5, 20))


def test_an_idle_engine_may_idle() -> None:
    assert _breathing(_watchdog(5, "idle"), 10_000, 5, "idle") is None


def test_silence_is_a_hang_whatever_the_phase() -> None:
    for phase in ("idle", "step", "something new"):
        reason = _watchdog(5, phase).elapse(20.5)
        assert reason is not None
        assert "no sign of life for 20 s" in reason


def test_any_message_is_a_sign_of_life() -> None:
    watchdog = _watchdog(5, "idle")
    for _ in range(10):
        watchdog.message_received()
        assert watchdog.elapse(15) is None


def test_loading_has_its_own_limit_with_and_without_beats() -> None:
    assert Watchdog(LIMITS, 100).elapse(99) is None
    assert "while loading" in str(Watchdog(LIMITS, 100).elapse(101))
    assert _breathing(Watchdog(LIMITS, 100), 101, 0, "loading") == "loading did not get further for 100 s"


def test_a_load_that_gets_further_may_take_long() -> None:
    watchdog = Watchdog(LIMITS, 100)
    for done in range(20):
        assert _breathing(watchdog, 90, 0, "loading") is None
        watchdog.load(done + 1)
    for _ in range(50):  # said again and again, between beats
        watchdog.load(20)
        assert _breathing(watchdog, 2, 0, "loading") is None
    assert _breathing(watchdog, 1, 0, "loading") == "loading did not get further for 100 s"


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, 3), st.sampled_from(["step", "idle"])), max_size=60))
def test_nobody_is_ended_who_moved_within_the_limit(beats: list[tuple[float, int, str]]) -> None:
    watchdog, unmoved, state = _watchdog(), 0.0, (5, "step")
    for seconds, steps, phase in beats:
        reason = watchdog.elapse(seconds)
        unmoved += seconds
        assert (reason is None) == (unmoved <= 30 or state[1] == "idle")
        watchdog.message_received()
        watchdog.beat(steps, phase)
        if (steps, phase) != state:
            unmoved, state = 0.0, (steps, phase)


def test_the_loading_limit_follows_the_size(tmp_path: Path) -> None:
    small, large = tmp_path / "small", tmp_path / "large"
    small.mkdir()
    large.mkdir()
    (small / "model.safetensors").write_bytes(b"x")
    with (large / "model.safetensors").open("wb") as file:
        file.truncate(2_000_000_000)  # a sparse file
    base = LIMITS.for_loading(str(small))
    assert LIMITS.for_loading(str(large)) == pytest.approx(base + 100, abs=0.1)
    assert LIMITS.for_loading(str(large / "model.safetensors")) == pytest.approx(base + 100, abs=0.1)
    assert LIMITS.for_loading("an/unknown-name") > LIMITS.for_loading(str(large))
    assert LIMITS.for_loading("a\0b") > base


def test_a_model_on_the_shelf_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ELSEWISE_MODELS", str(tmp_path))
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path / "org--name").mkdir()
    assert LIMITS.for_loading("org/name") == EngineLimits().for_loading(str(tmp_path / "org--name"))


def test_a_given_loading_limit_stands() -> None:
    assert EngineLimits(loading_seconds=3).for_loading("anything") == 3
