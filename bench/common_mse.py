"""Mean squared error of an average from which contributions are missing, for gradients of unit variance with
correlation rho between any two ranks: from the numbers of contributions that arrived, and in closed form.

With a set S of contributions in an element

    renormalised (mean of S)     E = (1 - rho) (1/|S| - 1/N)             and E = Z = rho + (1 - rho)/N if S is empty
    plain (sum of S, over N)     E = ((1 - rho) m + rho m^2) / N^2       m = N - |S| contributions are missing

CLOSED FORM. Each frame is lost with probability p, independently. An owner that asks N-1 others has |S| = 1 +
Binomial(N-1, 1-p) contributions, and E[1/|S|] = (1 - p^N) / (N (1-p)). So at the owner, and at each rank of P2P, which
has no second step:

    A = (1 - rho) [(1 - p^N) / (N (1-p)) - 1/N]

In TAR and with one server a rank that is not the owner then misses the decided value with probability p:

    TAR = (1 - p (N-1)/N) A + p (N-1)/N Z

In Ring a partial sum that is lost takes all before it along: |S| = k with probability p (1-p)^(k-1) for k < N, and N
with probability (1-p)^(N-1); call that A' = (1 - rho) (E[1/|S|] - 1/N). The finished segment then makes d hops to the
rank d places on, and is there with probability (1-p)^d; a = (1 - (1-p)^N) / (N p) on average over d = 0..N-1:

    Ring = a A' + (1 - a) Z

For plain sums the same probabilities give the mean of m and of m^2: m = N where nothing arrived, else N - |S|.
"""

from __future__ import annotations

import math

import numpy as np

N = 8
CORRELATIONS = (0.0, 0.5, 1.0)


def errors(counts: np.ndarray, plain: bool) -> np.ndarray:
    """Mean error for each correlation, given how many contributions each element has."""
    return errors_of(np.bincount(counts.ravel(), minlength=N + 1) / counts.size, plain)


def errors_of(share: np.ndarray, plain: bool) -> np.ndarray:
    """The same from the shares of elements that have 0, 1, ... N contributions."""
    rho = np.array(CORRELATIONS)
    have = np.arange(N + 1)
    if plain:
        each = np.outer(1 - rho, N - have) + np.outer(rho, (N - have) ** 2)
        each = each / N**2
    else:
        each = np.outer(1 - rho, 1 / np.maximum(have, 1) - 1 / N)
        each[:, 0] = rho + (1 - rho) / N
    return each @ share


def closed_form(name: str, p: float, plain: bool = False) -> np.ndarray:
    """Mean error for each correlation when each frame is lost with probability p."""
    return errors_of(_chances(name, p), plain)


def _chances(name: str, p: float) -> np.ndarray:
    """How likely an element has 0, 1, ... N contributions at a random rank."""
    have = np.zeros(N + 1)
    if name == "ring":
        have[1:N] = p * (1 - p) ** np.arange(N - 1)
        have[N] = (1 - p) ** (N - 1)
        there = (1 - (1 - p) ** N) / (N * p) if p else 1.0
    else:
        have[1:] = [math.comb(N - 1, k) * (1 - p) ** k * p ** (N - 1 - k) for k in range(N)]
        there = 1.0 if name == "p2p" else 1 - p * (N - 1) / N
    have *= there
    have[0] = 1 - there
    return have
