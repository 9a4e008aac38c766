"""A label, several labels, or a number for each text or pair of texts."""
