# SPDX-License-Identifier: Apache-2.0
"""Ten prototypes of handwritten digits, learned by the gradient of an L1 distance: JAX."""

import jax
import jax.numpy as jnp
from sklearn.datasets import load_digits

import nativeops

images, labels = map(jnp.asarray, load_digits(return_X_y=True))
train, test = slice(1000), slice(1000, None)
prototypes = images[:10]  # one of each digit


@jax.jit
@jax.grad
def gradient(prototypes, images, labels):
    scores = -nativeops.pairwise_l1(images, prototypes) / 10
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


for step in range(101):
    if step % 50 == 0:
        found = nativeops.pairwise_l1(images[test], prototypes).argmin(1)
        print(f"step {step}: {100 * (found == labels[test]).mean():.1f} % right")
    prototypes -= 30 * gradient(prototypes, images[train], labels[train])
