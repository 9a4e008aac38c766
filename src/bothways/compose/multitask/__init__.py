"""Several tasks above one encoder."""
