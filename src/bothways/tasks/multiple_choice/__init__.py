"""Multiple choice: selects the ending or answer that goes with a context."""
