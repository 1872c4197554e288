from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import RuntimeFault
from runtime.transport.frames import PIECE, FrameError, FrameParser, encode_group

_groups = st.lists(st.lists(st.binary(max_size=40), min_size=1, max_size=5), max_size=6)


def _fed(parser: FrameParser, data: bytes, portion: int) -> list[list[bytes]]:
    groups = [group for at in range(0, len(data), portion) for group in parser.feed(data[at : at + portion])]
    return [[bytes(payload) for payload in group] for group in groups]


@given(groups=_groups, portion=st.integers(1, 100))
def test_groups_survive_any_portions(groups: list[list[bytes]], portion: int) -> None:
    data = b"".join(bytes(piece) for group in groups for piece in encode_group(group))
    parser = FrameParser()
    assert _fed(parser, data, portion) == groups
    assert parser.idle


@given(data=st.binary(max_size=200), portion=st.integers(1, 50))
def test_garbage_is_an_error_or_waits_for_more(data: bytes, portion: int) -> None:
    parser = FrameParser(max_payload=50, max_group=3)
    try:
        groups = _fed(parser, data, portion)
    except RuntimeFault as fault:
        assert isinstance(fault, FrameError)  # noqa: PT017  # which of both happens is up to the bytes
    else:
        assert all(len(payload) <= 50 for group in groups for payload in group)


@given(group=st.lists(st.binary(min_size=1, max_size=40), min_size=1, max_size=4), cut=st.integers(1, 10_000))
def test_a_truncated_stream_delivers_nothing_and_is_not_idle(group: list[bytes], cut: int) -> None:
    data = b"".join(bytes(piece) for piece in encode_group(group))
    parser = FrameParser()
    assert parser.feed(data[: -(cut % len(data)) or None]) == ([] if cut % len(data) else [group])
    assert parser.idle == (cut % len(data) == 0)


def test_large_payloads_leave_in_pieces_and_arrive_whole() -> None:
    large = bytes(range(256)) * (3 * PIECE // 256 + 1)
    pieces = list(encode_group([b"before", large, b"after"]))
    assert max(len(piece) for piece in pieces) <= PIECE
    assert _fed(FrameParser(), b"".join(pieces), 100_000) == [[b"before", large, b"after"]]


def test_small_payloads_share_a_piece() -> None:
    assert len(list(encode_group([b"call"] * 1000))) == 1


def test_an_announced_length_over_the_limit_is_refused_at_once() -> None:
    parser = FrameParser(max_payload=10)
    with pytest.raises(FrameError, match="announces 11 bytes, more than the 10"):
        parser.feed(b"E\x00\x00\x00\x0b")


def test_an_announced_gigabyte_takes_no_memory_before_it_arrives() -> None:
    parser = FrameParser()
    tracemalloc.start()
    try:
        assert parser.feed(b"E\x3f\xff\xff\xff" + b"x" * 100) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000  # at its peak
    finally:
        tracemalloc.stop()


def test_another_protocol_is_named() -> None:
    with pytest.raises(FrameError, match="cannot begin with byte 0x47"):
        FrameParser().feed(b"GET / HTTP/1.1\r\n")


def test_a_group_without_end_is_refused() -> None:
    parser = FrameParser(max_group=3)
    with pytest.raises(FrameError, match="more than 3 messages"):
        parser.feed(b"e\x00\x00\x00\x01x" * 4)
