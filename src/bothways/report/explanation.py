"""The page that explains a prediction: contributions of words, and the attention of heads."""

import numpy as np

from bothways.explain import Attribution, Explanation, TextAttention, causal, rollout
from bothways.explain.attention import Weights
from bothways.progress import figure
from bothways.report.page import Block, Figure, KeyFigure, KeyFigures, Page, Paragraph, Section, Table
from bothways.report.token_maps import head_grid, stacked, token_map, word_weights

_MOST_ROWS = 20

_METHODS = {
    "integrated-gradients": "the gradient of the score, integrated along the line from a text of padding to this one "
    "(Sundararajan et al. 2017). The contributions sum to the difference of the texts' scores",
    "gradient-x-input": "the gradient of the score at this text, times the difference from a text of padding",
    "leave-one-out": "the score of this text minus the score of the text without the word",
}


def explanation_page(found: Explanation) -> Page:
    """Return the page of an explanation."""
    sections = []
    if found.attribution is not None:
        sections.append(_words(found.attribution))
    if found.attention is not None:
        sections += [_attention(found, found.attention), _all_heads(found.attention)]
    notes = tuple(Paragraph(f"Not shown: {each}") for each in found.notes)
    return Page(
        title="Explanation",
        subtitle=f"{found.model}: the words that a prediction depends on, and the tokens that heads attend to.",
        sections=(*sections, *([Section("What is missing", notes)] if notes else [])),
        footer="Written by “bothways explain”.",
    )


def explanation_picture(found: Explanation) -> str:
    """Draw words and attention as one SVG."""
    drawings = [] if found.attribution is None else [_drawn(found.attribution)]
    if found.attention is not None:
        shown, tokens = _one_head(found, found.attention), found.attention.tokens
        drawings += [token_map(tokens, shown, _title(found), width=560), head_grid(found.attention.weights_LNSS)]
    return stacked(drawings)


def _drawn(found: Attribution) -> str:
    parts = [word.part for word in found.words]
    breaks = [at for at in range(1, len(parts)) if parts[at] != parts[at - 1]]
    title = f"{found.score_name}: {figure(found.score, 3)}"
    return word_weights([word.text for word in found.words], found.weights_W, title, breaks=breaks)


def _words(found: Attribution) -> Section:
    figures = [KeyFigure("Score", figure(found.score, 3), found.score_name)]
    if found.completeness_error is not None and found.baseline_score is not None:
        figures.append(KeyFigure("Baseline", figure(found.baseline_score, 3), "the score of a text of padding"))
        figures.append(KeyFigure("Error of the integral", f"{found.completeness_error:.2g}", "0 if computed exactly"))
    order: list[int] = np.argsort(-np.abs(np.nan_to_num(found.weights_W)), kind="stable").tolist()
    known = [at for at in order if not np.isnan(found.weights_W[at])][:_MOST_ROWS]
    rows = tuple((found.words[at].text, str(at), figure(found.weights_W[at], 3, sign=True)) for at in known)
    blocks: list[Block] = [
        KeyFigures(tuple(figures)),
        Figure(
            _drawn(found),
            "Blue words support the prediction, red ones contradict it; darker words contribute more. Words that "
            "cannot be left out are underlined with dots.",
            "The text with each word shaded by its contribution.",
        ),
        Paragraph(
            f"The contribution of a word is {_METHODS[found.method]}. Scores are uncalibrated. An attribution shows "
            "how the score depends on words by this definition, not why the model decides as it does."
        ),
    ]
    if rows:
        blocks.append(
            Table(("word", "number", "contribution"), rows, "The largest contributions.", ("number", "contribution"))
        )
    return Section("Words", tuple(blocks))


def _title(found: Explanation) -> str:
    head = found.head
    return "" if head is None else f"layer {head.layer}, head {head.head}"


def _one_head(found: Explanation, attention: TextAttention) -> Weights:
    head = found.head
    return attention.mean() if head is None else attention.head(head)


def _attention(found: Explanation, attention: TextAttention) -> Section:
    tokens, weights_SS = attention.tokens, _one_head(found, attention)
    title = _title(found)
    return Section(
        "Attention",
        (
            Figure(
                (
                    token_map(tokens, weights_SS, f"{title}: both ways"),
                    token_map(tokens, causal(weights_SS), f"{title}: to the left only"),
                ),
                "Each row shows the tokens that one token attends to, on the right with a causal mask. This is the "
                "head of the last layer that attends most to distant words.",
                "Two maps of attention weights between the tokens.",
            ),
            Figure(
                token_map(tokens, rollout(attention), "rollout over all layers", width=560),
                "Rollout (Abnar and Zuidema 2020): the share of each token (column) in each position of the last layer "
                "(row), by the attention weights of all layers and the residual connections.",
                "A map of the attention rollout between the tokens.",
            ),
            Paragraph("Attention shows where a head reads from. It does not give the reason for a prediction."),
        ),
    )


def _all_heads(attention: TextAttention) -> Section:
    return Section(
        "All heads",
        (
            Figure(
                head_grid(attention.weights_LNSS),
                "A row for each layer, a column for each head. In maps with a diagonal, tokens attend to themselves or "
                "a neighbour; in those with a vertical line, all attend to one token, mostly [CLS] or [SEP].",
                "Small maps of the attention of all heads.",
            ),
        ),
    )
