"""Objectives for the training loop that need no labels: learning from raw text."""
