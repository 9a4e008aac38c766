"""Tagging: one tag for each word, and the spans that the tags encode, such as names."""

from bothways.tasks.tagging.outputs import Tagging
from bothways.tasks.tagging.spec import TAGGING
from bothways.tasks.task import Task


class TextTagger(Task[str, Tagging]):
    """A tagger of words, with calibrated probabilities: names, parts of speech and the like.

    Inputs are raw texts or lists of words. Long texts are read in windows, merged by `outputs.word_scores`. Predicted
    tags are always valid in the scheme (`tag_set.TagSet.decode`). A word that the tokenizer drops (control characters)
    or that was truncated gets a tag that fits its neighbours, with equal probabilities for all tags.

    >>> tagger = TextTagger.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> tagger.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> tagger.predict("Angela Merkel was born in Hamburg.").spans[1].text  # doctest: +SKIP
    'Hamburg'
    """

    spec = TAGGING
