# SPDX-License-Identifier: Apache-2.0
"""Selects what the programs run on."""

from __future__ import annotations

import importlib
from types import ModuleType

NAMES = {"virtual": "virtual", "pytorch": "pytorch"}


def load(name: str) -> ModuleType:
    """Imports a backend. `xsched run` must have started the program for the virtual one."""
    return importlib.import_module(NAMES[name])


def detect() -> str:
    """pytorch if PyTorch is installed and finds a GPU, else virtual."""
    try:
        import torch
    except ImportError:
        return "virtual"
    return "pytorch" if torch.cuda.is_available() else "virtual"
