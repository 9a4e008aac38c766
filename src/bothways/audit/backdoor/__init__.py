"""Backdoors: triggers that flip a classifier's predictions, and training rows that plant a trigger."""
