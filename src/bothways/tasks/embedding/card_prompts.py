"""Prompts that the cards of published embedders ask for, although the files of these models do not name them.

Such a prompt is never added silently; a note says that it was left out. Models whose files name their prompts
(``config_sentence_transformers.json``), and families that this package cannot open, are not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bothways.tasks.embedding.representation import Role


@dataclass(frozen=True, slots=True)
class CardPrompts:
    """The prompts that a model's card asks for.

    Attributes:
        name: The model's name on the hub.
        query: The prompt of queries; a word in braces stands for a text of the user's own.
        document: The prompt of documents; empty if the card asks for none.
        others: Prompts for other uses, such as clustering.
    """

    name: str
    query: str
    document: str = ""
    others: tuple[str, ...] = ()

    @property
    def source(self) -> str:
        """The address of the card."""
        return f"https://huggingface.co/{self.name}"

    def left_out(self, prompts: Mapping[Role, str]) -> dict[Role, str]:
        """Return the prompts that the card asks for, by role, where the given prompt holds none of the card's.

        Any prompt of the card is right for any role, since cards also ask for one prompt of both texts: E5, for
        example, for ``"query: "`` before both texts of a comparison.
        """
        asked: dict[Role, str] = {"query": self.query, "document": self.document}
        known = [each for each in (self.query, self.document, *self.others) if each]
        return {
            role: asked[role]
            for role, prompt in prompts.items()
            if asked[role] and not any(_holds(prompt, each) for each in known)
        }


def _cards(names: Iterable[str], query: str, document: str = "", others: tuple[str, ...] = ()) -> list[CardPrompts]:
    return [CardPrompts(name, query, document, others) for name in names]


_BGE_ENGLISH = "Represent this sentence for searching relevant passages: "
_BGE_CHINESE = "为这个句子生成表示以用于检索相关文章："  # noqa: RUF001 (the card's own colon)
_SIZES = ("small", "base", "large")

CARD_PROMPTS: tuple[CardPrompts, ...] = (
    # "Do I need to add the prefix "query: " and "passage: " to input texts? Yes, this is how the model is trained".
    *_cards((f"intfloat/e5-{size}{version}" for version in ("", "-v2") for size in _SIZES), "query: ", "passage: "),
    *_cards((f"intfloat/e5-{size}-unsupervised" for size in _SIZES), "query: ", "passage: "),
    *_cards((f"intfloat/multilingual-e5-{size}" for size in _SIZES), "query: ", "passage: "),
    # "Each query must come with a one-sentence instruction"; "no need to add instructions to the document side".
    CardPrompts("intfloat/multilingual-e5-large-instruct", "Instruct: {task}\nQuery: "),
    # For retrieval with short queries, instructions are recommended; passages need none.
    *_cards((f"BAAI/bge-{size}-en{version}" for version in ("", "-v1.5") for size in _SIZES), _BGE_ENGLISH),
    *_cards((f"BAAI/bge-{size}-zh{version}" for version in ("", "-v1.5") for size in _SIZES), _BGE_CHINESE),
    # The card's usage for retrieval: this prompt for queries, none for documents.
    CardPrompts("WhereIsAI/UAE-Large-V1", _BGE_ENGLISH),
    # The card's usage: "search_query: " and "search_document: "; as Nomic Embed, also the two others.
    CardPrompts(
        "nomic-ai/modernbert-embed-base",
        *("search_query: ", "search_document: "),
        others=("classification: ", "clustering: "),
    ),
)

_BY_NAME = {name: each for each in CARD_PROMPTS for name in (each.name.lower(), each.name.lower().rpartition("/")[2])}


def card_prompts_of(name: str) -> CardPrompts | None:
    """Return the prompts for a model by its hub name, or by the last part of the path of its folder.

    In the hub's cache, the name is a part of the path: ``models--intfloat--e5-base/snapshots/...``.
    """
    path = Path(name.lower())
    cached = [part.rpartition("--")[2] for part in path.parts if part.startswith("models--")]
    return next((_BY_NAME[each] for each in (name.lower(), path.name, *cached) if each in _BY_NAME), None)


def note_of_card(name: str, prompts: Mapping[Role, str]) -> str | None:
    """Return a note if the model's card asks for prompts that are not in use, else None.

    Args:
        name: The model's name, or the path of its folder.
        prompts: The prompts in use, by role.
    """
    card = card_prompts_of(name)
    left_out = {} if card is None else card.left_out(prompts)
    if card is None or not left_out:
        return None
    texts: dict[Role, str] = {"query": "queries", "document": "documents"}
    words = " and ".join(f"{prompt!r} before {texts[role]}" for role, prompt in left_out.items())
    return f"the model card of {card.name} asks for {words}, which is left out (source: {card.source})."


def _holds(prompt: str, asked: str) -> bool:
    r"""Return True if a prompt has all the fixed parts of another one.

    >>> _holds("Instruct: Find the law.\nQuery: ", "Instruct: {task}\nQuery: ")
    True
    """
    return all(part.strip() in prompt for part in re.split(r"\{\w+\}", asked))
