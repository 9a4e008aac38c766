"""ROC curves as an SVG picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

_SIDE, _LEFT, _TOP = 320, 60, 20
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")


@dataclass(frozen=True)
class Curve:
    """Statistics of clean and poisoned models.

    Attributes:
        name: What the legend says.
        clean: Of clean models.
        poisoned: Of poisoned ones.
    """

    name: str
    clean: tuple[float, ...]
    poisoned: tuple[float, ...]

    def points(self) -> list[tuple[float, float]]:
        """Return false and true positive rates, from none flagged to all."""
        found = [(0.0, 0.0)]
        for threshold in sorted({*self.clean, *self.poisoned}, reverse=True):
            false = sum(each >= threshold for each in self.clean) / len(self.clean)
            true = sum(each >= threshold for each in self.poisoned) / len(self.poisoned)
            found.append((false, true))
        return found


def roc_svg(curves: Sequence[Curve]) -> str:
    """Return a picture of the curves, each in a colour and a dash of its own."""
    width, height = _LEFT + _SIDE + 230, _TOP + _SIDE + 50
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<rect x="{_LEFT}" y="{_TOP}" width="{_SIDE}" height="{_SIDE}" fill="none" stroke="#888"/>',
        f'<path d="M{_at(0, 0)} L{_at(1, 1)}" stroke="#bbb" stroke-dasharray="3 3"/>',
    ]
    for tick in (0.0, 0.5, 1.0):
        x, y = _LEFT + tick * _SIDE, _TOP + (1 - tick) * _SIDE
        parts.append(f'<text x="{x:.0f}" y="{_TOP + _SIDE + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{tick:g}</text>')
    middle = _TOP + _SIDE / 2
    parts.append(
        f'<text x="{_LEFT + _SIDE / 2}" y="{height - 10}" text-anchor="middle">clean models flagged</text>'
        f'<text transform="translate(18 {middle}) rotate(-90)" text-anchor="middle">poisoned models flagged</text>'
    )
    for number, curve in enumerate(curves):
        colour, dash = _COLOURS[number % len(_COLOURS)], f"{12 - 2 * number} {2 * number}"
        path = " L".join(_at(*point) for point in curve.points())
        style = f'stroke="{colour}" stroke-width="{3 - 0.4 * number:.1f}" stroke-dasharray="{dash}"'
        parts.append(f'<path d="M{path}" fill="none" {style}/>')
        y = _TOP + 20 + 22 * number
        x = _LEFT + _SIDE + 15
        parts.append(f'<path d="M{x} {y} h28" {style}/><text x="{x + 36}" y="{y + 4}">{escape(curve.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _at(false: float, true: float) -> str:
    return f"{_LEFT + false * _SIDE:.1f} {_TOP + (1 - true) * _SIDE:.1f}"
