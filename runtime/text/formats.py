"""Named chat formats, for models without a template or in place of their own.

Each format is the published template of a family's instruct models, without tools. It begins with the beginning-of-text
token if raw text does (`LoadOptions.add_bos`).
"""

from __future__ import annotations

from dataclasses import dataclass

_NO_TOOLS = (
    "{%- for message in messages %}{%- if message.tool_calls or message.role == 'tool' %}"
    "{{- raise_exception('this format has no place for calls and their results; load a model whose own template has one') }}"
    "{%- endif %}{%- endfor %}"
)
_SYSTEM_FIRST = (
    "{%- if messages[0].role == 'system' %}{%- set first = messages[0].content + '\\n\\n' %}{%- set turns = messages[1:] %}"
    "{%- else %}{%- set first = '' %}{%- set turns = messages %}{%- endif %}"
    "{%- for message in turns %}{%- if message.role not in ('user', 'assistant') %}"
    "{{- raise_exception('this format knows the roles user and assistant, after one system message at most') }}"
    "{%- elif (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{- raise_exception('user and assistant must take turns in this format, the user first') }}"
    "{%- endif %}{%- endfor %}"
)


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A named chat format."""

    source: str  # jinja2; may use bos_token (empty if the model wants none) and eos_token
    marks: tuple[str, ...] = ()  # its special tokens; one that the vocabulary lacks becomes plain text
    end: str | None = None  # the mark that ends a turn; None: the model's eos
    stops: tuple[str, ...] = ()  # texts that end an answer with any vocabulary, before the next turn of the user


CHAT_FORMATS = {
    "chatml": NamedFormat(  # OpenAI's, as Qwen, SmolLM2 and many others use it
        _NO_TOOLS + "{{- bos_token }}{%- for message in messages %}"
        "{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}",
        marks=("<|im_start|>", "<|im_end|>"),
        end="<|im_end|>",
    ),
    "llama3": NamedFormat(  # Meta-Llama-3-8B-Instruct
        _NO_TOOLS + "{{- bos_token }}{%- for message in messages %}"
        "{{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}"
        "{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}",
        marks=("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        end="<|eot_id|>",
    ),
    "mistral": NamedFormat(  # Mistral-7B-Instruct-v0.2; [INST] is plain text there
        _NO_TOOLS + _SYSTEM_FIRST + "{{- bos_token }}{%- for message in turns %}{%- if message.role == 'user' %}"
        "{{- ' [INST] ' + (first if loop.first else '') + message.content + ' [/INST]' }}"
        "{%- else %}{{- ' ' + message.content + eos_token }}{%- endif %}{%- endfor %}",
        stops=("[INST]",),
    ),
    "gemma": NamedFormat(  # gemma-3-it; gemma-2-it writes the same but refuses a system message
        _NO_TOOLS + _SYSTEM_FIRST + "{{- bos_token }}{%- for message in turns %}"
        "{{- '<start_of_turn>' + ('model' if message.role == 'assistant' else 'user') + '\\n' }}"
        "{{- (first if loop.first else '') + message.content | trim + '<end_of_turn>\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- '<start_of_turn>model\\n' }}{%- endif %}",
        marks=("<start_of_turn>", "<end_of_turn>"),
        end="<end_of_turn>",
    ),
    "plain": NamedFormat(  # names before colons, which base models know without training for chats
        _NO_TOOLS + "{{- bos_token }}{%- for message in messages %}"
        "{%- if message.role == 'user' %}{{- 'User: ' }}{%- elif message.role == 'assistant' %}{{- 'Assistant: ' }}"
        "{%- endif %}{{- message.content | trim + '\\n\\n' }}{%- endfor %}"
        "{%- if add_generation_prompt %}{{- 'Assistant:' }}{%- endif %}",
        stops=("\n\nUser:", "\nUser:"),
    ),
}
"""By the name in `LoadOptions.chat_format`."""
