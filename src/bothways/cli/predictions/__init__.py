"""``bothways predict``, ``embed``, ``fill-mask`` and ``schema``, and jobs of these over many files."""
