"""Hugging Face directories: ``config.json``, safetensors and a tokenizer."""
