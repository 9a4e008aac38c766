"""Kinds of model for a task: an encoder, a decoder, or both."""

from dataclasses import dataclass
from typing import Literal

from bothways.errors import InvalidInput, nearest

Architecture = Literal["encoder", "decoder", "encoder-decoder"]


@dataclass(frozen=True, slots=True)
class TaskAdvice:
    """A task and the kind of model that it needs.

    Attributes:
        name: Name of the task.
        why: The reason for the kind of model that it needs.
        examples: Example inputs and outputs.
        architecture: The kind of model.
        models: Well-known models for the task; empty if it needs an encoder.
        encoder_part: The part of the task that an encoder can do, if it needs another kind of model.
        also: Other names of the task.
        cased: True if upper and lower case matter for the task.
        embeds: True if it compares sentence vectors, so that trained embedders come first.
        ready: True if pre-trained models do it without fine-tuning.
    """

    name: str
    why: str
    examples: tuple[str, ...]
    architecture: Architecture = "encoder"
    models: tuple[str, ...] = ()
    encoder_part: str = ""
    also: tuple[str, ...] = ()
    cased: bool = False
    embeds: bool = False
    ready: bool = False

    @property
    def beyond_encoders(self) -> str:
        """A note for a task that needs another kind of model."""
        return (
            f"This package has encoders only. For {self.name} look at {', '.join(self.models)}; "
            f"an encoder can {self.encoder_part}."
        )


_WHOLE = "The whole text is known before the answer, so every token may attend both ways, and one pass is enough."

TASKS: tuple[TaskAdvice, ...] = (
    TaskAdvice(
        "classification",
        f"A label for a text. {_WHOLE}",
        ('"Great battery, poor screen." -> mixed', "an e-mail -> spam", "a ticket -> billing"),
        also=("text-classification", "sentiment", "sentiment-analysis", "topic", "intent", "spam"),
    ),
    TaskAdvice(
        "ner",
        "A label for every word, which depends on the words after it as much as on those before it.",
        ('"Ada Lovelace was born in London." -> Ada Lovelace: person, London: place',),
        also=("named-entity-recognition", "tagging", "token-classification", "entities"),
        cased=True,
    ),
    TaskAdvice(
        "pos",
        "A label for every word; the words on both sides decide it.",
        ('"They can fish." -> pronoun, auxiliary, verb',),
        also=("part-of-speech", "part-of-speech-tagging"),
        cased=True,
    ),
    TaskAdvice(
        "embeddings",
        "One vector per text, computed once from all of its tokens.",
        ("two sentences of like meaning -> two vectors with a cosine near 1",),
        also=("embedding", "sentence-embeddings", "clustering", "deduplication"),
        embeds=True,
    ),
    TaskAdvice(
        "search",
        "The texts are embedded once and kept; a query costs one short pass and a comparison.",
        ('"how do I reset my password" -> the help page on account recovery',),
        also=("semantic-search", "retrieval", "information-retrieval"),
        embeds=True,
    ),
    TaskAdvice(
        "similarity",
        "A number for a pair of texts, from two vectors or from both texts read together.",
        ('"A man is eating." and "Someone has a meal." -> 0.9',),
        also=("sts", "semantic-similarity", "paraphrase"),
        embeds=True,
    ),
    TaskAdvice(
        "question-answering",
        "The answer is a part of the text: only its first and last token have to be found.",
        ('"When was it founded?" with a paragraph -> "in 1907"',),
        also=("extractive-question-answering", "qa", "extractive-qa", "squad"),
    ),
    TaskAdvice(
        "entailment",
        "A label for a pair of texts, which are read together so that each word sees both.",
        ('"A dog runs." and "An animal moves." -> entailment',),
        also=("nli", "natural-language-inference", "textual-entailment", "pair-classification"),
    ),
    TaskAdvice(
        "reranking",
        "A score for a query and a candidate read together; more accurate than vectors, but slower: for the best hits.",
        ("a query and 50 hits -> the same hits in a better order",),
        also=("rerank", "cross-encoder"),
    ),
    TaskAdvice(
        "fill-mask",
        "A missing word is predicted from both sides, as most encoders were trained to do.",
        ('"Paris is the [MASK] of France." -> capital',),
        also=("masked-lm", "cloze"),
        ready=True,
    ),
    TaskAdvice(
        "judging",
        "A label for a pair of texts that are read together: does the passage help with the query, or support the "
        "answer? This is entailment, so accuracy on MNLI is the nearest published figure.",
        (
            "a query and a retrieved passage -> relevant",
            "an answer and its source passage -> supported",
            "a query and an answer -> responds to it",
        ),
        also=(
            *("judge", "rag", "rag-evaluation", "context-relevance", "answer-faithfulness", "answer-relevance"),
            *("faithfulness", "groundedness", "guard", "moderation"),
        ),
    ),
    TaskAdvice(
        "generation",
        "New text is written token by token, each from those before it; an encoder cannot write.",
        ('"Once upon a time" -> a story',),
        architecture="decoder",
        models=("GPT-2", "Llama", "Mistral", "Qwen"),
        encoder_part="judge, rank or filter what was written",
        also=("text-generation", "writing", "completion", "code-generation"),
    ),
    TaskAdvice(
        "chat",
        "Answers of any length to any request, written token by token with the conversation before them.",
        ('"Plan three days in Rome." -> a plan',),
        architecture="decoder",
        models=("Llama", "Mistral", "Qwen", "GPT-4"),
        encoder_part="route requests, find the texts to answer from, and guard both sides",
        also=("dialogue", "assistant", "conversation"),
    ),
    TaskAdvice(
        "summarization",
        "The text is read both ways, and its content is written in other words.",
        ("a report -> three sentences of it in other words",),
        architecture="encoder-decoder",
        models=("BART", "PEGASUS", "T5"),
        encoder_part="choose the sentences that matter most, which is a summary by extraction",
        also=("summarisation", "abstractive-summarization", "summary"),
    ),
    TaskAdvice(
        "translation",
        "A sentence is read both ways in one language and written token by token in another.",
        ('"Guten Morgen" -> "Good morning"',),
        architecture="encoder-decoder",
        models=("Marian", "mBART", "NLLB", "T5"),
        encoder_part="find pairs of sentences that translate each other, and score translations",
        also=("machine-translation",),
    ),
)


def find_task(name: str) -> TaskAdvice:
    """Return a task by one of its names, or raise InvalidInput with a list of the known tasks."""
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    names = {each: task for task in TASKS for each in (task.name, *task.also)}
    if key in names:
        return names[key]
    near = nearest(key, names, cutoff=0.7)
    raise InvalidInput(
        f"unknown task {name!r}. "
        + (f"Did you mean {near!r}? " if near else "")
        + f"Known: {', '.join(task.name for task in TASKS)}."
    )
