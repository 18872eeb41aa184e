"""What a call's segmentation does to its time: arithmetic of a tower, to scale measured times by.

A rung is timed with the longest segment that it holds. The same rows in several segments attend to
fewer others, so they take less: measured time times the share of the arithmetic.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import nn

from ostinato.vision.contract import VisionConfig


class Work(NamedTuple):
    """Operations (multiply-adds twice) per row, and per pair of rows that attend to each other.

    Both count alike. Attention's take 1.5 times as long on an H200, but counted so, padding seemed
    to cost too little (docs/log.md, 2026-11-30).
    """

    per_row: float
    per_pair: float

    @classmethod
    def of(cls, tower: nn.Module, config: VisionConfig) -> Work:
        """Of the blocks' products, and of those blocks that attend to whole segments."""
        blocks = tower.get_submodule("blocks")
        num_weights = sum(p.numel() for p in blocks.parameters() if p.dim() >= 2)
        num_blocks = len(config.full_attention_blocks) if config.window_side else config.depth
        return cls(2.0 * num_weights, 4.0 * config.width * num_blocks)

    def of_rows(self, num_rows: int, num_pairs: int) -> float:
        """Operations of ``num_rows``; pairs are the sum of the segments' squared lengths."""
        return self.per_row * num_rows + self.per_pair * num_pairs

    def share(self, num_rows: int, num_pairs: int, num_pairs_timed: int) -> float:
        """Of the operations with ``num_pairs_timed``, when there are ``num_pairs``."""
        return self.of_rows(num_rows, num_pairs) / self.of_rows(num_rows, num_pairs_timed)
