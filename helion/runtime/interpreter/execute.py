"""Arguments, grid and errors of one interpreted launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime.jit import JITFunction, TensorWrapper
from triton.tools.tensor_descriptor import TensorDescriptor

from ..._locks import TRITON_LOCK
from .memory import Memory, Region
from .rewrite import Interpreted, adapt, interpreted
from .semantic import SEMANTIC
from .values import Handle, Tensor, own, scalar
