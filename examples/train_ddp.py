# SPDX-License-Identifier: Apache-2.0
"""The recogniser of `nativeops demo`, trained by several processes with PyTorch's DDP.

    torchrun --standalone --nproc-per-node 2 examples/train_ddp.py

Each process takes its share of every batch; DDP averages the gradients, so all together compute
what one process does with whole batches: `python examples/train_ddp.py` prints the same losses, but
for the rounding of sums in another order.
"""

import argparse
import os

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import nativeops
from nativeops.demos.lines_data import Lines
from nativeops.demos.lines_train import Plan, Training


class Shared(Training):
    """One process's part in the training of a model that all of them have."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.model.get_submodule("dropout").p = 0.0  # its zeros would differ from one process's
        self.model = DistributedDataParallel(self.model)

    def lines(self) -> Lines:
        """Every second line, or third .. of the batch: as many for each process."""
        return super().lines().part(slice(distributed.get_rank(), None, processes()))

    def take_step(self) -> float:
        """The step, and the loss of the whole batch."""
        loss = torch.tensor(super().take_step())
        distributed.all_reduce(loss)
        return loss.item() / processes()


def processes() -> int:
    return distributed.get_world_size()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=Plan.steps)
    parser.add_argument("--batch", type=int, default=Plan.batch, help="lines of all processes")
    parser.add_argument("--hidden", type=int, default=Plan.hidden)
    parser.add_argument("--save", help="write the trained parameters to this file")
    given = parser.parse_args()

    if "RANK" in os.environ:  # torchrun says who we are
        distributed.init_process_group("gloo")
    else:
        store = distributed.HashStore()
        distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    if given.batch < 1 or given.batch % processes():
        parser.error(f"--batch must be a multiple of the {processes()} processes")
    nativeops.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes()))

    training = Shared(Plan(steps=given.steps, batch=given.batch, hidden=given.hidden))
    for step in range(given.steps):
        loss = training.take_step()
        if distributed.get_rank() == 0:
            print(f"step {step + 1}: loss {loss:.6f}", flush=True)
    if given.save and distributed.get_rank() == 0:
        torch.save(training.model.module.state_dict(), given.save)
    distributed.destroy_process_group()
    # A thread of gloo may still hold the last loss, and aborts a process whose Python ends then
    # (PyTorch issue 190489): DDP keeps these threads, so that nobody can wait for them.
    os._exit(0)


if __name__ == "__main__":
    main()
