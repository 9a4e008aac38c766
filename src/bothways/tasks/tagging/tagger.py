"""Tagging: one tag for each word, and the spans that the tags encode, such as names."""

from bothways.tasks.tagging.outputs import Tagging
from bothways.tasks.tagging.spec import TAGGING
from bothways.tasks.task import Task


class TextTagger(Task[str, Tagging]):
    """A tagger of words, with calibrated probabilities: names, parts of speech and the like.

    It takes raw texts and lists of words. A long text is read in windows; see `outputs.word_scores` for how they are
    merged. Spans are never broken, see `tag_set.TagSet.decode`. A word that the tokenizer drops (control characters) or
    that was truncated gets the tag that its neighbours suggest, with the probability of a guess.

    >>> tagger = TextTagger.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> tagger.fit("train.jsonl", validation="validation.jsonl")  # doctest: +SKIP
    >>> tagger.predict("Angela Merkel was born in Hamburg.").spans[1].text  # doctest: +SKIP
    'Hamburg'
    """

    spec = TAGGING
