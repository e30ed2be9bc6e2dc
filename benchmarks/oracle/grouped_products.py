"""torch._grouped_mm in other formats than bf16 on meta and fake tensors.

On CUDA it takes fp16 and fp32 too, in a loop over the groups that allocates its result alone (aten/src/ATen/native/cuda/GroupedBlas.cpp,
PyTorch 2.13); the kernel for tensors without memory asks for bf16.
"""

from __future__ import annotations

from typing import Any

import torch
import torch._meta_registrations as registrations


def stand_in() -> None:
    asked = registrations._meta_grouped_mm_common

    def replaced(mat_a: torch.Tensor, mat_b: torch.Tensor, *rest: Any, **named: Any) -> Any:
        if mat_a.dtype not in (torch.float16, torch.float32) or mat_a.dtype != mat_b.dtype:
            return asked(mat_a, mat_b, *rest, **named)
        offsets = named["offs"] if "offs" in named else rest[2]
        return registrations._create_grouped_mm_output_tensor(mat_a, mat_b, offsets, mat_a.dtype)

    registrations._meta_grouped_mm_common = replaced
