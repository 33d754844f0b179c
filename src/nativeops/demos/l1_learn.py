# SPDX-License-Identifier: Apache-2.0
"""Three ways to tell digits apart by L1 distances."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nativeops import pairwise_l1
from nativeops.demos.digits import CLASSES, Digits

NEIGHBOURS = 3
MEDIANS = 30
PROTOTYPES = 3  # per class
ROUNDS = 100  # at most, of moving the medians; about 15 are needed
STEPS = 100

Labels = NDArray[Any]
Vectors = NDArray[np.float32]


def nearest_neighbours(digits: Digits) -> Labels:
    """What most of the nearest training images show."""
    from scipy.stats import mode

    distances = pairwise_l1(digits.held_out, digits.train)
    nearest = np.argsort(distances, axis=1, kind="stable")[:, :NEIGHBOURS]
    return np.asarray(mode(digits.train_label[nearest], axis=1).mode)


class Clusters(NamedTuple):
    """Medians, the digit that most of each one's images show, and what they make of new images."""

    medians: Vectors
    label: Labels
    found: Labels


def k_medians(digits: Digits) -> Clusters:
    """Cluster without labels; the majority in a cluster names it."""
    from sklearn.cluster import kmeans_plusplus

    medians, _ = kmeans_plusplus(digits.train, MEDIANS, random_state=0)
    nearest = pairwise_l1(digits.train, medians).argmin(1)
    for _ in range(ROUNDS):
        medians = np.stack(
            [
                np.median(digits.train[nearest == i], axis=0) if np.any(nearest == i) else old
                for i, old in enumerate(medians)
            ]
        )
        moved = pairwise_l1(digits.train, medians).argmin(1)
        if np.array_equal(moved, nearest):
            break
        nearest = moved
    votes = np.zeros((MEDIANS, CLASSES), dtype=np.int64)
    np.add.at(votes, (nearest, digits.train_label), 1)
    label = votes.argmax(1)
    return Clusters(medians, label, label[pairwise_l1(digits.held_out, medians).argmin(1)])


def learned_prototypes(digits: Digits) -> Labels:
    """Images that are moved by gradient until the nearest one shows the right digit.

    The loss is the cross entropy of a softmax over minus the distances, in which the prototypes
    of a class add up.
    """
    import torch

    random = np.random.default_rng(0)
    start = [
        random.choice(np.flatnonzero(digits.train_label == c), PROTOTYPES, replace=False)
        for c in range(CLASSES)
    ]
    prototypes = torch.from_numpy(digits.train[np.concatenate(start)]).requires_grad_()
    sharpness = torch.tensor(0.1, requires_grad=True)
    optimizer = torch.optim.Adam(
        [{"params": [prototypes], "lr": 0.3}, {"params": [sharpness], "lr": 0.003}]
    )

    def scores(images: Any) -> Any:
        distances = pairwise_l1(images, prototypes)
        return (-sharpness * distances).reshape(-1, CLASSES, PROTOTYPES).logsumexp(-1)

    images, label = torch.from_numpy(digits.train), torch.from_numpy(digits.train_label)
    for _ in range(STEPS):
        loss = torch.nn.functional.cross_entropy(scores(images), label)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        return np.asarray(scores(torch.from_numpy(digits.held_out)).argmax(1))
