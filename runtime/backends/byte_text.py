"""The tokenizer and chat template of the built-in toy backends: one token per byte, ChatML specials, no files."""

from __future__ import annotations

from typing import Any

BYTES = 256  # ids 0..255 are the bytes themselves
SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")  # ids 256, 257, 258
IM_START, IM_END, END_OF_TEXT = range(BYTES, BYTES + len(SPECIALS))
VOCABULARY = BYTES + len(SPECIALS)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def byte_tokenizer() -> Any:
    """A `tokenizers.Tokenizer` whose id for each byte of UTF-8 text is the byte; `SPECIALS` are special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({char: byte for byte, char in enumerate(byte_characters())}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def byte_characters() -> tuple[str, ...]:
    """GPT-2's table for byte-level vocabularies (Radford et al. 2019): the printable character that represents each byte."""
    printable = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    stand_ins = iter(range(BYTES, 2 * BYTES))
    return tuple(chr(byte) if byte in printable else chr(next(stand_ins)) for byte in range(BYTES))


def own_text() -> tuple[Any, str, tuple[int, ...]]:
    """The tokenizer, the chat template, and the ids that end a text."""
    return byte_tokenizer(), CHATML, (IM_END, END_OF_TEXT)
