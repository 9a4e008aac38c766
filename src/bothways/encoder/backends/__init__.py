"""Attention within each sequence of a packed batch, in several implementations."""
