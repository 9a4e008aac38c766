"""``bothways search``: an index of texts, its queries and their evaluation."""
