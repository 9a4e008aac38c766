"""Backdoors: triggers that flip a classifier's answer, and training rows that plant one."""
