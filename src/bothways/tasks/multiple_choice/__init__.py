"""Multiple choice: selects the ending or answer that fits a context."""
