"""Heads above an encoder: the module that answers, its training, and what it starts from."""
