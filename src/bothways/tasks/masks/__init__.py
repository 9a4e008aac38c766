"""What stands behind masks, and adapting a model to raw texts."""
