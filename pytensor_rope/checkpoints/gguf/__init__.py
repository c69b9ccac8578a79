"""GGUF files: llama.cpp's format."""
