"""Names that earlier versions wrote into saved folders, so that these still open."""

CARD_KEYS = {"trust": "confidence"}
"""Keys of a card in ``bothways.json``, and what they are called now."""

CONFIDENCE_FILE = "trust.safetensors"
"""The file that is now ``confidence.safetensors``."""

THRESHOLD_LIMIT = "The border of the domain was drawn by"
"""Beginning of the limit in a card that a newly fitted out-of-domain threshold replaces."""
