"""Drawings of tokens and words as SVG: attention maps, grids of all heads, and words shaded by weight.

A map of 512 tokens has 262,144 cells. To be small and fast, large maps show the largest weight of each block of cells,
label only some of the tokens, and draw all cells of one of 16 shades as one path.

Shapes: L layers, N heads, S tokens, W words.
"""

from collections.abc import Sequence
from html import escape

import numpy as np
import numpy.typing as npt

from bothways.errors import InvalidInput
from bothways.report.drawing import ACCENT, FONT, INK, label_width, printable, short_label, storable

NEGATIVE = "#b4532a"
WIDTH = 760.0
# Width of a line of words. Phones shrink it to two thirds; lines of WIDTH would become illegible.
_LINE = 540.0
# Maximum blocks along the side of a single map, and of each map in a grid of heads.
_MAX_BLOCKS, _MAX_SMALL = 128, 24
_LABELS = 40
_SHADES = 16
_FONT = f'font-family="{FONT}"'


def token_map(tokens: Sequence[str], weights_SS: npt.ArrayLike, title: str, *, width: float = WIDTH / 2 - 8) -> str:
    """Draw the attention (0 to 1) of each token (row) to each token (column); ``width`` is in pixels.

    The shade is proportional to the square root of the weight.
    """
    given_SS = _checked(np.asarray(weights_SS, dtype=np.float64)[None, None], len(tokens))[0, 0]
    named = list(range(0, len(tokens), -(-len(tokens) // _LABELS)))
    labels = [short_label(storable(tokens[at])) for at in named]
    size = 10.0
    label_space = label_width([tokens[at] for at in named], size) + 8
    side = min(width - label_space - 4, 32.0 * len(tokens))
    step = side / len(tokens)
    size = min(size, max(5.0, step * (named[1] if len(named) > 1 else 1) - 1))
    top = 22 + label_space
    parts = [_text(0, 12, title, 12, weight=600)]
    for at, label in zip(named, labels, strict=True):
        middle = (at + 0.5) * step
        parts.append(_text(label_space - 5, top + middle, label, size, anchor="end", middle=True))
        x = label_space + middle
        parts.append(_text(x, top - 5, label, size, turn=f"rotate(-90 {x:.1f} {top - 5:.1f})", middle=True))
    parts += [f'<g transform="translate({label_space:.1f} {top:.1f})">', *_cells(given_SS, side, _MAX_BLOCKS), "</g>"]
    return _svg(parts, max(label_space + side + 4, 120.0), top + side + 4)


def head_grid(weights_LNSS: npt.ArrayLike) -> str:
    """Draw the attention maps of all heads (weights from 0 to 1), with a row for each layer."""
    given = np.asarray(weights_LNSS, dtype=np.float64)
    if given.ndim != 4:
        raise InvalidInput(f"expected attention weights of shape (L, N, S, S), got {given.shape}.")
    given = _checked(given, given.shape[-1])
    layers, heads = given.shape[:2]
    left, top, gap = 54.0, 22.0, 4.0
    side = min(90.0, (WIDTH - left) / heads - gap)
    parts = [
        _text(left + head * (side + gap) + side / 2, top - 6, str(head), 10, anchor="middle") for head in range(heads)
    ]
    for layer in range(layers):
        y = top + layer * (side + gap)
        parts.append(_text(left - 6, y + side / 2, f"layer {layer}", 10, anchor="end", middle=True))
        for head in range(heads):
            parts.append(f'<g transform="translate({left + head * (side + gap):.1f} {y:.1f})">')
            parts += [*_cells(given[layer, head], side, _MAX_SMALL), "</g>"]
    return _svg(parts, left + heads * (side + gap), top + layers * (side + gap))


def word_weights(words: Sequence[str], weights_W: npt.ArrayLike, title: str, *, breaks: Sequence[int] = ()) -> str:
    """Draw a text, each word shaded by its positive or negative weight; words with weight NaN have a dotted underline.

    ``breaks`` are the indices of the words that start a new line.
    """
    given_W = np.asarray(weights_W, dtype=np.float64)
    if not len(words) or given_W.shape != (len(words),):
        raise InvalidInput(f"expected a weight for each of {len(words)} words, got an array of shape {given_W.shape}.")
    highest = max(float(np.nanmax(np.abs(given_W), initial=0.0)), 1e-12)
    parts, x, y, size, line = [_text(0, 12, title, 12, weight=600)], 0.0, 24.0, 14.0, 30.0
    widest = max(260.0, 7.5 * len(title))
    for number, (word, weight) in enumerate(zip(words, given_W, strict=True)):
        label = short_label(storable(word))
        wide = label_width([word], size) + 8
        if x and (x + wide > _LINE or number in breaks):
            x, y = 0.0, y + line
        if np.isnan(weight):
            parts.append(
                f'<line x1="{x:.1f}" y1="{y + 24:.1f}" x2="{x + wide:.1f}" y2="{y + 24:.1f}" stroke="{INK}" '
                'stroke-opacity="0.5" stroke-dasharray="2 2"/>'
            )
        else:
            colour, shade = ACCENT if weight > 0 else NEGATIVE, 0.62 * abs(weight) / highest
            parts.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{wide:.1f}" height="24" rx="3" fill="{colour}" '
                f'fill-opacity="{shade:.3f}"/>'
            )
        parts.append(_text(x + wide / 2, y + 16.5, label, size, anchor="middle"))
        x += wide + 2
        widest = max(widest, x)
    y += line + 6
    legend = (("for", ACCENT, 0.0), ("against", NEGATIVE, 60.0))
    for name, colour, at in legend:
        parts.append(f'<rect x="{at}" y="{y}" width="12" height="12" rx="2" fill="{colour}" fill-opacity="0.62"/>')
        parts.append(_text(at + 17, y + 10, name, 11))
    parts.append(_text(150, y + 10, f"strongest: {highest:.3g}", 11))
    return _svg(parts, widest, y + 18)


def stacked(drawings: Sequence[str]) -> str:
    """Stack drawings of this module into one SVG on a white background, for use outside a page."""
    boxes = [list(map(float, each.split('viewBox="', 1)[1].split('"', 1)[0].split()[2:])) for each in drawings]
    margin, gap = 16.0, 18.0
    width, parts, y = max(box[0] for box in boxes), [], margin
    for (wide, high), each in zip(boxes, drawings, strict=True):
        placed = f'<svg x="{margin}" y="{y:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        parts.append(each.replace("<svg", placed, 1).replace(f' width="{wide:.0f}" height="{high:.0f}"', "", 1))
        y += high + gap
    whole, high = width + 2 * margin, y - gap + margin
    return _svg([f'<rect width="{whole:.0f}" height="{high:.0f}" fill="white"/>', *parts], whole, high)


def _cells(weights_SS: npt.NDArray[np.float64], side: float, limit: int) -> list[str]:
    pooled_PP = _pooled(weights_SS, limit)
    step = side / len(pooled_PP)
    levels_PP = np.round(np.sqrt(pooled_PP) * _SHADES).astype(int)
    parts = [
        f'<rect width="{side:.1f}" height="{side:.1f}" fill="none" stroke="{INK}" stroke-opacity="0.2" '
        'stroke-width="0.5"/>'
    ]
    for level in range(1, _SHADES + 1):
        runs = _runs(levels_PP == level)
        if runs:
            path = "".join(
                f"M{column * step:.2f} {row * step:.2f}h{length * step:.2f}v{step:.2f}h{-length * step:.2f}z"
                for row, column, length in runs
            )
            parts.append(f'<path d="{path}" fill="{ACCENT}" fill-opacity="{level / _SHADES:.2f}"/>')
    return parts


def _pooled(weights_SS: npt.NDArray[np.float64], limit: int) -> npt.NDArray[np.float64]:
    """Return the largest weight of each block, with at most ``limit`` blocks per side."""
    size = len(weights_SS)
    if size <= limit:
        return weights_SS
    starts = np.arange(limit) * size // limit
    pooled_PP: npt.NDArray[np.float64] = np.maximum.reduceat(np.maximum.reduceat(weights_SS, starts, 0), starts, 1)
    return pooled_PP


def _runs(chosen_PP: npt.NDArray[np.bool_]) -> list[tuple[int, int, int]]:
    """Return the row, first column and length of each run of chosen cells."""
    edges = np.diff(np.pad(chosen_PP.astype(np.int8), ((0, 0), (1, 1))), axis=1)
    begins, ends = np.argwhere(edges == 1), np.argwhere(edges == -1)
    return [(int(row), int(column), int(end - column)) for (row, column), (_, end) in zip(begins, ends, strict=True)]


def _checked(given: npt.NDArray[np.float64], size: int) -> npt.NDArray[np.float64]:
    if not size or given.shape[-2:] != (size, size):
        raise InvalidInput(f"expected attention weights for all pairs of {size} tokens, got shape {given.shape}.")
    if not (np.isfinite(given).all() and given.min() >= 0 and given.max() <= 1.01):
        raise InvalidInput("expected attention weights from 0 to 1: pass the weights after the softmax.")
    return np.minimum(given, 1.0)


def _text(
    x: float,
    y: float,
    text: str,
    size: float,
    *,
    anchor: str = "start",
    weight: int = 400,
    middle: bool = False,
    turn: str = "",
) -> str:
    # Moving a label down by a third of its size centres it, also in viewers without dominant-baseline.
    y += size / 3 if middle else 0
    turned = f' transform="{turn}"' if turn else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:.1f}" font-weight="{weight}" fill="{INK}" '
        f'text-anchor="{anchor}" {_FONT}{turned}>{escape(printable(text))}</text>'
    )


def _svg(parts: Sequence[str], width: float, height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}">{"".join(parts)}</svg>'
    )
