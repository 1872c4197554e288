"""Text and token ids: tokenizer, chat templates, UTF-8; tool calls in an answer, which are read and never executed."""
