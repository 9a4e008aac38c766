"""Measurements of `bothways serve` under load, beside the library and other servers: see ``__main__``."""
