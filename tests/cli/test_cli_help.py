"""The program as a whole: help, versions, exit codes, and how light it is."""
