"""Multiple choice: which of several endings or answers goes with a context."""
