# SPDX-License-Identifier: Apache-2.0
"""Training of the recogniser, in steps that can be interrupted and taken up again."""

import math
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from nativeops.demos.lines_data import Lines, training_lines
from nativeops.demos.lines_model import Criterion, Library, Recogniser, logits_of
from nativeops.errors import ArgumentError, message


@dataclass(frozen=True)
class Plan:
    """What is trained; the same plan gives the same model, bit by bit."""

    steps: int = 2400
    batch: int = 16
    hidden: int = 80
    rate: float = 0.02  # of AdamW, at its highest
    betas: tuple[float, float] = (0.9, 0.99)  # of AdamW: so few steps have a short memory
    warm: int = 30  # steps until then; afterwards it falls as a cosine does
    decay: float = 0.05  # of the weights: without it some digits are learnt by heart
    seed: int = 0
    keep_every: int = 25

    def rate_at(self, step: int) -> float:
        """The learning rate of one step."""
        if step < self.warm:
            return self.rate * (step + 1) / self.warm
        done = (step - self.warm) / max(1, self.steps - self.warm)
        return self.rate * (1 + math.cos(math.pi * done)) / 2


class Training:
    """A model on its way: what a checkpoint keeps, and how to take a step."""

    def __init__(self, plan: Plan, library: Library = "nativeops") -> None:
        self.plan = plan
        self.model: torch.nn.Module = Recogniser(plan.hidden, library=library, seed=plan.seed)
        self.criterion = Criterion(library)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), betas=plan.betas, weight_decay=plan.decay
        )
        self.losses: list[float] = []
        self.resumed = 0  # steps that a checkpoint had

    @property
    def step(self) -> int:
        """How many steps have been taken."""
        return len(self.losses)

    def lines(self) -> Lines:
        """What the next step learns from."""
        return training_lines(self.plan.seed, self.step, self.plan.batch)

    def take_step(self) -> float:
        """One batch: loss, gradients, a step of AdamW."""
        lines = self.lines()
        for group in self.optimizer.param_groups:
            group["lr"] = self.plan.rate_at(self.step)
        self.optimizer.zero_grad()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.plan.seed + (self.step << 20))  # so dropout resumes as it was
            loss = self.criterion(logits_of(self.model, lines), lines)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 5.0)
        self.optimizer.step()
        self.losses.append(loss.item())
        return self.losses[-1]

    def save(self, path: Path) -> None:
        """Write all of it at once: whoever reads finds the old state or the new one."""
        state = {
            "plan": asdict(self.plan),
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "losses": self.losses,
        }
        unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        try:
            torch.save(state, unfinished)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)

    def load(self, path: Path) -> None:
        """Go on from where `save` was called."""
        hint = "remove it, or name another file."
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True)
            plan = state["plan"]
        except Exception as problem:  # PyTorch raises what its many readers raise
            text = f"`{path}` is no checkpoint of a training."
            raise ArgumentError(message("demo", text, hint=hint)) from problem
        if plan != asdict(self.plan):
            text = f"`{path}` was written by a training with other settings: {plan}."
            raise ArgumentError(message("demo", text, hint=hint))
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.losses = list(state["losses"])
        self.resumed = self.step


def train(
    plan: Plan,
    checkpoint: Path | None = None,
    progress: Callable[[str, float], None] = lambda text, share: None,
) -> Training:
    """Train to the end; from the checkpoint on, if there is one.

    The state is written there every ``keep_every`` steps, and at the end; so what is interrupted
    loses fewer than these.
    """
    training = Training(plan)
    if checkpoint and checkpoint.exists():
        training.load(checkpoint)
    while training.step < plan.steps:
        loss = training.take_step()
        text = f"training: step {training.step} of {plan.steps}, loss {loss:.3f}"
        progress(text, training.step / plan.steps)
        if checkpoint and (training.step % plan.keep_every == 0 or training.step == plan.steps):
            training.save(checkpoint)
    return training
