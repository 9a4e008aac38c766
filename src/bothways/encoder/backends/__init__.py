"""Attention within each sequence of a packed batch, by several implementations."""
