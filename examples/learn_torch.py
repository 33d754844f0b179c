# SPDX-License-Identifier: Apache-2.0
"""Ten prototypes of handwritten digits, learned by the gradient of an L1 distance: PyTorch."""

import torch
from sklearn.datasets import load_digits

import nativeops

images, labels = map(torch.from_numpy, load_digits(return_X_y=True))
images = images.float()
train, test = slice(1000), slice(1000, None)
prototypes = images[:10].clone().requires_grad_()  # one of each digit


def loss(prototypes, images, labels):
    distances = nativeops.pairwise_l1(images, prototypes)
    return torch.nn.functional.cross_entropy(-distances / 10, labels)


for step in range(101):
    if step % 50 == 0:
        found = nativeops.pairwise_l1(images[test], prototypes).argmin(1)
        print(f"step {step}: {100 * (found == labels[test]).float().mean():.1f} % right")
    loss(prototypes, images[train], labels[train]).backward()
    with torch.no_grad():
        prototypes -= 30 * prototypes.grad
    prototypes.grad = None
