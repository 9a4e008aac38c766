"""Extractive question answering: finds the answer to a question in a context."""
