"""Rows without chance, and what ppi-python makes of them, frozen in ``ppi_python_values.json``.

The package brings numba, statsmodels and gdown, so it is no dependency of the tests. Made with ppi-python 0.2.3 in an
environment of its own, from the repository's root::

    pip install ppi-python==0.2.3
    python tests/evaluation/ppi_python_values.py > tests/evaluation/ppi_python_values.json
"""

import json

import numpy as np

ALPHA = 0.1
SIZES = {"decisions": (50, 500), "scores": (150, 1000), "numbers": (80, 400), "useless": (60, 300)}


def rows(kind):
    """Labels, scores on them, and scores on other rows, from multiples of square roots."""
    labelled, others = SIZES[kind]
    index = np.arange(1, labelled + others + 1)
    first, second, third = (index * np.sqrt(prime) % 1 for prime in (2, 3, 5))
    labels = (first < 0.8).astype(float)
    if kind == "decisions":
        judge_scores = np.where(second < 0.85, labels, 1 - labels)
    elif kind == "scores":
        judge_scores = np.clip(0.1 + 0.5 * labels + 0.6 * (second - 0.5), 0, 1)
    elif kind == "useless":
        judge_scores = second
    else:
        labels = -np.log(first) - np.log(third)
        judge_scores = 0.8 * labels + 0.3 + 1.5 * (second - 0.5)
    return labels[:labelled], judge_scores[:labelled], judge_scores[labelled:]


def main():
    from ppi_py import classical_mean_ci, ppi_mean_ci, ppi_mean_pointestimate

    def plain(value):
        return [float(np.ravel(each)[0]) for each in value]

    found = {}
    for kind in SIZES:
        sample = rows(kind)
        found[kind] = {
            "classical": [float(sample[0].mean()), *plain(classical_mean_ci(sample[0], alpha=ALPHA))],
            "ppi": [*plain([ppi_mean_pointestimate(*sample, lam=1)]), *plain(ppi_mean_ci(*sample, alpha=ALPHA, lam=1))],
        }
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
