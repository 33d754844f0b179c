# SPDX-License-Identifier: Apache-2.0
"""The one step that setuptools does not know: compiling the kernels into the wheel."""

from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

from nativeops.shipping import ship

DECLARATION = Path(__file__).parent / "src/huber_op/huber.py"


class BuildWithKernels(build_py):
    """Copy the package, then put the libraries beside the kernel's header."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # there the op is compiled on first use
            for path in ship(DECLARATION, Path(self.build_lib) / "huber_op"):
                print(f"built {path.name}")


class PlatformWheel(bdist_wheel):
    """The libraries are of this platform, but of no particular Python."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class Platform(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": BuildWithKernels, "bdist_wheel": PlatformWheel}, distclass=Platform)
