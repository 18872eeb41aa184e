"""What a vision tower is to the code that feeds, records and serves it.

A tower is a pure function of tensors with static shapes. Everything that describes the batch
(positions, boundaries, permutations) is computed on the host and arrives as 4-byte tensors, so
that one staged upload carries it. Host integers that shape the recorded work are upper bounds.

Words: a *patch* is one input row, a *merge unit* is ``merge_size ** 2`` patches that become one
*token* (one row of embeddings), a *segment* is one frame, a *window* is a part of a frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ostinato.errors import WeightsError

Grid = tuple[int, int, int]
"""One item: frames (after temporal merging), rows and columns of patches. An image has 1 frame."""

Int32 = npt.NDArray[np.int32]
Float32 = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class VisionConfig:
    """Sizes of a tower, from the checkpoint. Zero or empty: the tower does not have the feature."""

    model_type: str
    depth: int
    width: int
    num_heads: int
    mlp_width: int
    out_width: int
    patch_size: int
    temporal_patch_size: int
    merge_size: int
    in_channels: int = 3
    activation: str = "gelu"
    rope_theta: float = 10000.0
    position_side: int = 0
    """Side of the square grid of learned positions."""
    deepstack_blocks: tuple[int, ...] = ()
    """Blocks whose output also goes to a DeepStack level, ascending; one level each."""
    window_side: int = 0
    """Side of an attention window, in merge units."""
    full_attention_blocks: tuple[int, ...] = ()
    """Blocks that attend to the whole frame; the others attend to windows."""

    def __post_init__(self) -> None:
        if self.width % (4 * self.num_heads):
            raise WeightsError(
                f"{self.model_type}: width must be a multiple of 4 * heads for two-axis rotary "
                f"positions, got width {self.width} and {self.num_heads} heads"
            )
        for index in (*self.deepstack_blocks, *self.full_attention_blocks):
            if index >= self.depth:
                raise WeightsError(f"{self.model_type}: block {index} named, depth is {self.depth}")

    @property
    def head_dim(self) -> int:
        return self.width // self.num_heads

    @property
    def merge_unit(self) -> int:
        """Patches per token."""
        return self.merge_size**2

    @property
    def patch_width(self) -> int:
        """Values per patch: channels, frames, height, width, flattened in this order."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def max_window_patches(self) -> int:
        """Patches of a full window; 0 without windows."""
        return self.window_side**2 * self.merge_unit


class LayoutTensors(NamedTuple):
    """What a tower reads about a batch, on its device. ``None``: this tower has no use for it.

    T patches, U = T / merge_unit merge units, S segments and W windows, all four capacities.
    """

    positions: Tensor
    """(T, 2) int32: row and column of each patch in its frame, in the order the blocks see."""
    segment_offsets: Tensor
    """(S + 1,) int32: where frames begin."""
    interpolation_indices: Tensor | None = None
    """(T, 4) int32: rows of the learned position table."""
    interpolation_weights: Tensor | None = None
    """(T, 4) float32."""
    window_order: Tensor | None = None
    """(U,) int32: the merge unit at each place of the window order."""
    window_inverse: Tensor | None = None
    """(U,) int32: the place of each merge unit in the window order."""
    window_offsets: Tensor | None = None
    """(W + 1,) int32: where windows begin, in patches, in window order."""


class LayoutArrays(NamedTuple):
    """``LayoutTensors`` on the host: read-only numpy arrays of the same names and shapes."""

    positions: Int32
    segment_offsets: Int32
    interpolation_indices: Int32 | None = None
    interpolation_weights: Float32 | None = None
    window_order: Int32 | None = None
    window_inverse: Int32 | None = None
    window_offsets: Int32 | None = None


@dataclass(frozen=True, slots=True)
class Rung:
    """Capacities of one recorded size. Whatever fits may be replayed through it.

    ``max_segment`` and ``max_window`` (patches) are baked: no segment or window, the padding's own
    among them, is longer.
    """

    num_patches: int
    num_segments: int
    max_segment: int
    num_windows: int = 0
    max_window: int = 0


@dataclass(frozen=True, slots=True)
class Layout:
    """One batch as host integers and arrays; exact, or padded up to ``size``.

    Real rows come first: ``num_patches`` of ``size.num_patches`` input rows and ``num_tokens`` of
    the embeddings' rows. ``item_tokens`` splits the latter by item, in the caller's order.
    """

    grids: tuple[Grid, ...]
    item_patches: tuple[int, ...]
    item_tokens: tuple[int, ...]
    size: Rung
    """The shapes of ``arrays`` and the bounds to bake; for an exact layout as tight as can be."""
    arrays: LayoutArrays

    @property
    def num_patches(self) -> int:
        return sum(self.item_patches)

    @property
    def num_tokens(self) -> int:
        return sum(self.item_tokens)


class EncoderOutput(NamedTuple):
    """``embeddings``: (U, out_width); ``deepstack``: one (U, out_width) per level, first first."""

    embeddings: Tensor
    deepstack: tuple[Tensor, ...]


class EncoderModel(Protocol):
    """A vision tower: a pure function of tensors, its weights apart."""

    @property
    def config(self) -> VisionConfig: ...

    def __call__(
        self, patches: Tensor, layout: LayoutTensors, *, max_segment: int, max_window: int
    ) -> EncoderOutput:
        """``patches``: (T, patch_width), floating; ``max_*``: ``Rung``'s bounds, baked.

        Rows past the real ones may hold anything, NaN included; their results are meaningless.
        """
