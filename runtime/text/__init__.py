"""Text and token ids: tokenizer, chat templates, UTF-8."""
