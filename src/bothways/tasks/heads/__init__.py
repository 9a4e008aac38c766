"""Heads on top of an encoder: the module with the outputs, its training, and its initial weights."""
