"""Philox-4x32 of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), with ten rounds, on int64 tensors."""

from __future__ import annotations

import torch

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
INCREMENTS = (0x9E3779B9, 0xBB67AE85)
"""Numbers that each round adds to the words of the key."""
WORD = 0xFFFFFFFF
UNIFORM = 4.6566127342e-10
"""The largest fp32 factor that maps 2**31 - 1 below 1, as ``triton.language.rand`` has it."""


def philox(seed: torch.Tensor, offsets: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return the four 32-bit words for 64-bit offsets, as int64 in [0, 2**32)."""
    key = [seed & WORD, (seed >> 32) & WORD]
    c0, c1 = offsets & WORD, (offsets >> 32) & WORD
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(ROUNDS):
        # int64 products wrap, but their bits are right
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1 = ((b >> 32) & WORD) ^ c1 ^ key[0], b & WORD
        c2, c3 = ((a >> 32) & WORD) ^ c3 ^ key[1], a & WORD
        key = [(k + i) & WORD for k, i in zip(key, INCREMENTS, strict=True)]
    return c0, c1, c2, c3


def uniform(word: torch.Tensor) -> torch.Tensor:
    """Convert 32-bit words to fp32 numbers in [0, 1)."""
    signed = torch.where(word > 0x7FFFFFFF, WORD - word, word)
    return signed.to(torch.float32) * UNIFORM
