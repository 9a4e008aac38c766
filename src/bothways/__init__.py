"""Encoder-only language models in one house."""
