"""Single-label and multi-label classification, and regression, of texts and of pairs of texts."""
