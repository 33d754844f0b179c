# SPDX-License-Identifier: Apache-2.0
"""Ten prototypes of handwritten digits, learned by the gradient of an L1 distance: TensorFlow."""

import tensorflow as tf
from sklearn.datasets import load_digits

import nativeops

images, labels = map(tf.constant, load_digits(return_X_y=True))
images = tf.cast(images, tf.float32)
train, test = slice(1000), slice(1000, None)
prototypes = tf.Variable(images[:10])  # one of each digit


@tf.function
def gradient(images, labels):
    with tf.GradientTape() as tape:
        scores = -nativeops.pairwise_l1(images, prototypes) / 10
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores)
        loss = tf.reduce_mean(loss)
    return tape.gradient(loss, prototypes)


for step in range(101):
    if step % 50 == 0:
        found = tf.argmin(nativeops.pairwise_l1(images[test], prototypes), 1)
        right = tf.reduce_mean(tf.cast(found == labels[test], tf.float32))
        print(f"step {step}: {100 * right:.1f} % right")
    prototypes.assign_sub(30 * gradient(images[train], labels[train]))
