"""Models made of several: ensembles, and several tasks above one encoder."""
