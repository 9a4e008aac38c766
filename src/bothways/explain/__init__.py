"""Explanations: the tokens that attention heads attend to, and the words that a prediction depends on.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.explain.attention import Head, TextAttention, attention_of, causal, illustrative_head, rollout
    from bothways.explain.attribution import Attribution, DeletionCurves, attribute, deletion_curves
    from bothways.explain.explanation import Explanation, explain, explain_attention
    from bothways.explain.gradients import InputGradients, input_gradients
    from bothways.explain.heads import HeadRole, Sentence, head_roles, pronoun_sentences, read_sentences
    from bothways.explain.targets import AnswerSpan, ContextChoice, Label, Target, Word, WordTag

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

_MODULES = {
    "attention": ("Head", "TextAttention", "attention_of", "causal", "illustrative_head", "rollout"),
    "attribution": ("Attribution", "DeletionCurves", "attribute", "deletion_curves"),
    "explanation": ("Explanation", "explain", "explain_attention"),
    "gradients": ("InputGradients", "input_gradients"),
    "heads": ("HeadRole", "Sentence", "head_roles", "pronoun_sentences", "read_sentences"),
    "targets": ("AnswerSpan", "ContextChoice", "Label", "Target", "Word", "WordTag"),
}
__getattr__ = loader(__name__, _MODULES)
