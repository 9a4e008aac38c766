"""Pre-training from raw text: recipes, new models, and the run from a corpus to an encoder."""
