"""Text to a corpus in Megatron's format: read it, tokenize it, look into it, check it after a copy."""
