"""Backdoors: triggers that turn a classifier's answer, and training rows that put one there."""
