"""The model of `tailbound demo`: a small MLP on handwritten digits, in NumPy, gradients by hand.

Parameters and gradient are one flat float32 array each, so that a step is one all_reduce of one bucket; the layers are
views into it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np

LAYERS = (64, 256, 128, 10)  # pixels, hidden, hidden, digits
TEST_SHARE = 0.2


def load_digits(seed: int) -> dict[str, np.ndarray]:
    """scikit-learn's digits (1797 images of 8x8 pixels), shuffled and split: x, y for training, test_x, test_y."""
    from sklearn.datasets import load_digits as load

    bunch = load()
    order = np.random.default_rng(seed).permutation(len(bunch.target))
    x = (bunch.data[order] / 16.0).astype(np.float32)
    y = bunch.target[order].astype(np.int64)
    test = round(len(y) * TEST_SHARE)
    return {"x": x[test:], "y": y[test:], "test_x": x[:test], "test_y": y[:test]}


class Shard:
    """One rank's own part of the training data. Which images step s uses depends on s alone, so that a rank that
    jumped to a later round also skips the data of the rounds it missed."""

    def __init__(self, x: np.ndarray, y: np.ndarray, rank: int, ranks: int, batch: int, seed: int) -> None:
        self.x, self.y = x[rank::ranks], y[rank::ranks]
        self.batch = min(batch, len(self.y))
        self.seed = (seed, rank)
        self.per_epoch = len(self.y) // self.batch
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def at(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Images and digits of step `step`, in a fresh order in each epoch."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._epoch = epoch
            self._order = np.random.default_rng([*self.seed, epoch]).permutation(len(self.y))
        rows = self._order[place * self.batch : (place + 1) * self.batch]
        return self.x[rows], self.y[rows]


class Mlp:
    """ReLU layers and a softmax with cross-entropy. `flat` holds every weight and bias."""

    def __init__(self, seed: int, layers: tuple[int, ...] = LAYERS) -> None:
        self.layers = layers
        self.flat = np.zeros(sum((a + 1) * b for a, b in pairwise(layers)), np.float32)
        random = np.random.default_rng(seed)
        for weight, _ in self.views(self.flat):
            weight[:] = random.normal(0, np.sqrt(2 / len(weight)), weight.shape)

    def views(self, flat: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """(weights, biases) of each layer, as views into a flat array: the parameters, or a gradient."""
        at, found = 0, []
        for a, b in pairwise(self.layers):
            found.append((flat[at : at + a * b].reshape(a, b), flat[at + a * b : at + a * b + b]))
            at += (a + 1) * b
        return found

    def gradient(self, x: np.ndarray, y: np.ndarray, out: np.ndarray) -> float:
        """Writes the gradient of the mean loss over (x, y) into `out`; returns that loss."""
        inputs, value = [], x
        layers = self.views(self.flat)
        for number, (weight, bias) in enumerate(layers):
            inputs.append(value)
            value = value @ weight + bias
            if number < len(layers) - 1:
                value = np.maximum(value, 0)
        value = value - value.max(axis=1, keepdims=True)
        share = np.exp(value)
        total = share.sum(axis=1, keepdims=True)
        rows = np.arange(len(y))
        loss = float(np.mean(np.log(total[:, 0]) - value[rows, y]))
        slope = share / total
        slope[rows, y] -= 1
        slope /= len(y)
        places = self.views(out)
        for number in range(len(layers) - 1, -1, -1):
            np.matmul(inputs[number].T, slope, out=places[number][0])
            places[number][1][:] = slope.sum(axis=0)
            if number:
                slope = (slope @ layers[number][0].T) * (inputs[number] > 0)
        return loss

    def accuracy(self, x: np.ndarray, y: np.ndarray, flat: np.ndarray | None = None) -> float:
        """Share of images whose digit is told right, with these parameters or with `flat`."""
        value = x
        layers = self.views(self.flat if flat is None else flat)
        for number, (weight, bias) in enumerate(layers):
            value = value @ weight + bias
            if number < len(layers) - 1:
                value = np.maximum(value, 0)
        return float(np.mean(value.argmax(axis=1) == y))
