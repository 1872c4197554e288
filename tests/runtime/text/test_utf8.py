from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from runtime.text.utf8 import Utf8Stream, clean_text, texts_of

PIECES = st.lists(st.binary(max_size=6) | st.text(max_size=3).map(str.encode))


@st.composite
def cut_text(draw: st.DrawFn) -> list[bytes]:
    """A text's bytes, cut anywhere."""
    data = draw(st.text()).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)))))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


@given(PIECES | cut_text())
def test_pieces_decode_as_the_whole_does(pieces: list[bytes]) -> None:
    # given
    stream = Utf8Stream()
    # when
    texts = [stream.feed(piece) for piece in pieces]
    texts.append(stream.flush())
    # then
    assert "".join(texts) == b"".join(pieces).decode(errors="replace")


@given(PIECES | cut_text())
def test_texts_of_a_whole_join_to_it(pieces: list[bytes]) -> None:
    texts = texts_of(pieces)
    assert len(texts) == len(pieces)
    assert "".join(texts) == b"".join(pieces).decode(errors="replace")


@given(PIECES, st.integers(0, 20))
def test_texts_go_on_from_earlier_tokens(pieces: list[bytes], cut: int) -> None:
    # given
    stream = Utf8Stream()
    # when
    texts = texts_of(pieces[:cut], stream) + texts_of(pieces[cut:], stream)
    # then
    assert "".join(texts) + stream.flush() == b"".join(pieces).decode(errors="replace")


@given(cut_text())
def test_a_token_gets_the_code_points_it_completes(pieces: list[bytes]) -> None:
    # given
    stream, done = Utf8Stream(), b""
    for piece in pieces:
        # when
        before = len(done.decode(errors="ignore"))
        text = stream.feed(piece)
        done += piece
        # then
        assert text == done.decode(errors="ignore")[before:]


def test_an_emoji_of_four_tokens_belongs_to_the_last() -> None:
    stream = Utf8Stream()
    assert texts_of([b"\xf0", b"\x9f", b"\x98", b"\x80!"], stream) == ("", "", "", "😀!")
    assert stream.pending == b""


def test_an_unfinished_end_is_kept_back_until_the_flush() -> None:
    stream = Utf8Stream()
    assert stream.feed(b"a\xe6\x97") == "a"
    assert stream.pending == b"\xe6\x97"
    assert stream.flush() == "\ufffd"
    assert stream.feed(b"\xa5b") == "\ufffdb"


def test_lone_surrogates_become_replacement_characters() -> None:
    assert clean_text("a\ud800b\udc00") == "a\ufffdb\ufffd"
    assert clean_text("\ud83d\ude00") == "😀"
    assert clean_text("\x00\x1b[31m <|im_end|>\u202e") == "\x00\x1b[31m <|im_end|>\u202e"


@given(st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF)))
def test_clean_text_is_text_that_can_be_encoded(text: str) -> None:
    assert clean_text(text).encode().decode() == clean_text(text)
