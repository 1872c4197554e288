"""Between text and token ids: tokenizer, template, UTF-8."""
