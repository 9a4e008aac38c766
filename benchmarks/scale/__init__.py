"""Measurements of jobs over many files and of indexes in a database: see ``__main__``."""
