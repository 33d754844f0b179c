# SPDX-License-Identifier: Apache-2.0
"""Where the arrays are that are measured: ``cpu``, or the first GPU, ``cuda``."""

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from nativeops.bench.case import Rival
from nativeops.bench.machine import cpu_name

GPU_FRAMEWORKS = ("torch", "jax")  # those of whose arrays we know how to put them on a GPU


@dataclass(frozen=True)
class Place:
    """A device for all rivals of a run.

    Args:
        device: ``cpu`` or ``cuda``.
    """

    device: str = "cpu"

    @property
    def on_gpu(self) -> bool:
        """Whether calls return before their work is done, in memory that is not the system's."""
        return self.device != "cpu"

    def missing(self) -> str:
        """Why nothing can be measured here; empty if it can."""
        if not self.on_gpu:
            return ""
        if find_spec("torch") is None:
            return "PyTorch is missing, which the rivals on a GPU need; `pip install torch`."
        import torch

        found = torch.cuda.is_available()
        return "" if found else "PyTorch finds no NVIDIA GPU; leave `--device cuda` away."

    def name(self) -> str:
        """What the processor is called."""
        if not self.on_gpu:
            return cpu_name()
        import torch

        name: str = torch.cuda.get_device_name(0)
        return name

    def begin(self) -> None:
        """Settings of a process, before anything is on the device.

        On a GPU, everybody computes in float32 what is float32: PyTorch's recurrent layers and all
        of JAX would round to 10 bits of mantissa (TF32). Both may have memory there.
        """
        if not self.on_gpu:
            return
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
        os.environ.setdefault("JAX_DEFAULT_MATMUL_PRECISION", "highest")
        import torch

        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False

    def takes(self, rival: Rival) -> bool:
        """Whether a rival's arrays can be here. JAX has its own on a GPU wherever it finds one."""
        return not self.on_gpu or rival.framework in GPU_FRAMEWORKS

    def prepare(self, rival: Rival, arrays: Sequence[Any]) -> Callable[[], Any]:
        """The call of a rival with these arrays: new tensors of PyTorch are here."""
        with self._default():
            return rival.prepare(*arrays)

    def _default(self) -> AbstractContextManager[Any]:
        if not self.on_gpu:
            return nullcontext()
        import torch

        return torch.device(self.device)

    def finish(self) -> None:
        """Wait until all work is done. JAX's rivals wait by themselves."""
        if self.on_gpu:
            import torch

            torch.cuda.synchronize()

    def peak_growth(self, call: Callable[[], Any]) -> int:
        """Bytes of PyTorch's GPU memory at the peak of a call beyond what was there before it."""
        import torch

        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        return torch.cuda.max_memory_allocated() - before


CPU = Place()
