"""The compiler of CUDA's kernels, as a package of Python."""

from __future__ import annotations

import glob
import importlib.util
import os
import re

_VARIABLE = "QUANTILES_NVRTC"


def name_compiler() -> None:
    """Names NVRTC for the extension, which loads it when it is first needed: that of ``nvidia-cuda-nvrtc``, unless the variable names one."""
    if _VARIABLE in os.environ:
        return
    package = importlib.util.find_spec("nvidia")
    for folder in (package.submodule_search_locations if package else None) or []:
        for file in sorted(glob.glob(os.path.join(folder, "*", "lib", "libnvrtc.so.*")), reverse=True):
            if re.search(r"libnvrtc\.so\.\d+$", file):
                os.environ[_VARIABLE] = file
                return
