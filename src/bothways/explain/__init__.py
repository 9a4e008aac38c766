"""What went on inside an encoder: which token looked at which."""

from bothways.explain.attention import Head, TextAttention, attention_of, causal, illustrative_head

__all__ = ["Head", "TextAttention", "attention_of", "causal", "illustrative_head"]
