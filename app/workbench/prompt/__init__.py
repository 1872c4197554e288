"""What a model reads: rendered, tokenised, scored and recorded."""
