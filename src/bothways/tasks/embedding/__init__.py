"""Vectors of texts: making them, training what makes them, and classifying by them."""
