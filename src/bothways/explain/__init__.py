"""Looking inside: where heads read, and which words a prediction rests on."""

from bothways.explain.attention import Head, TextAttention, attention_of, causal, illustrative_head
from bothways.explain.attribution import Attribution, attribute
from bothways.explain.deletion import DeletionCurves, deletion_curves
from bothways.explain.explanation import Explanation, explain, explain_attention
from bothways.explain.gradients import InputGradients, input_gradients
from bothways.explain.heads import HeadRole, Sentence, head_roles, pronoun_sentences, read_sentences
from bothways.explain.rolling import rollout
from bothways.explain.subjects import AnswerSpan, ContextChoice, Label, Target, Word, WordTag

__all__ = [
    "AnswerSpan",
    "Attribution",
    "ContextChoice",
    "DeletionCurves",
    "Explanation",
    "Head",
    "HeadRole",
    "InputGradients",
    "Label",
    "Sentence",
    "Target",
    "TextAttention",
    "Word",
    "WordTag",
    "attention_of",
    "attribute",
    "causal",
    "deletion_curves",
    "explain",
    "explain_attention",
    "head_roles",
    "illustrative_head",
    "input_gradients",
    "pronoun_sentences",
    "read_sentences",
    "rollout",
]
