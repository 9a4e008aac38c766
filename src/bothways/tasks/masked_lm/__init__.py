"""Filling masks, the likelihood of texts, and masked language modelling on raw texts."""
