"""Looking inside: where heads read, and which words a prediction rests on."""

from bothways.explain.attention import Head, TextAttention, attention_of, causal, illustrative_head
from bothways.explain.attribution import Attribution, attribute
from bothways.explain.gradients import InputGradients, input_gradients
from bothways.explain.subjects import AnswerSpan, Choice, Label, Target, Word, WordTag

__all__ = [
    "AnswerSpan",
    "Attribution",
    "Choice",
    "Head",
    "InputGradients",
    "Label",
    "Target",
    "TextAttention",
    "Word",
    "WordTag",
    "attention_of",
    "attribute",
    "causal",
    "illustrative_head",
    "input_gradients",
]
