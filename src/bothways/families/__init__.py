"""The families of published encoders, as data."""

from bothways.families.family import FAMILIES, CheckpointHead, Family, HeadName, Published, family_in, family_of

__all__ = ["FAMILIES", "CheckpointHead", "Family", "HeadName", "Published", "family_in", "family_of"]
