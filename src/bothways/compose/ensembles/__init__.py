"""Ensembles: several models whose predictions are combined."""
