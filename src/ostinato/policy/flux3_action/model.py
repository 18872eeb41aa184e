"""Everything a chunk needs, as functions of tensors grouped by how long their results stay valid.

``caption`` per instruction, ``observe`` per observation, ``velocities`` per solver step, ``chunk``
for all steps; constants (tables, segment numbers) are buffers. Nothing here knows of recordings.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from ostinato.policy.chunking import Prefix, guide
from ostinato.policy.flux3_action.config import ActionConfig
from ostinato.policy.flux3_action.positions import action_ids, rotary_tables, text_ids, video_ids
from ostinato.policy.flux3_action.transformer import Encoded, Tables, Transformer
from ostinato.policy.flux3_action.vae import VaeConfig, VaeEncoder, vae_tables
from ostinato.policy.solver import Step, sample, schedule


class Caption(NamedTuple):
    """Per instruction: the text stream, and the rotary tables of its rows (L, head_dim / 2)."""

    stream: Encoded
    cos: Tensor
    sin: Tensor


class Observation(NamedTuple):
    """Per observation: the current frame's stream and the state's."""

    video: Encoded
    state: Encoded


class ActionModel(nn.Module):
    """Transformer and video encoder on one device, with their constants."""

    content_cos: Tensor
    content_sin: Tensor
    segments: Tensor

    def __init__(self, config: ActionConfig, vae_config: VaeConfig) -> None:
        super().__init__()
        self.config = config
        is_fp8 = config.quantization == "fp8r"
        self.dit = Transformer(config.dit, config.streams, is_fp8=is_fp8)
        self.vae = VaeEncoder(vae_config)
        rows, columns = config.latent_hw
        self.num_cells = rows * columns
        self.num_video = config.num_latents * self.num_cells
        self.num_stages = len(vae_config.depths)

    def set_constants(self, device: torch.device, dtype: torch.dtype) -> None:
        """Make the constants; once, after the weights are in place."""
        config, dit = self.config, self.config.dit
        rows, columns = config.latent_hw
        frames = range(1, config.num_latents + 1)
        # the order of the joint sequence after the text
        parts = (
            video_ids(frames, rows, columns, config.fps),
            video_ids([0], rows, columns, config.fps),
            action_ids(config.chunk_size, config.fps),
            torch.zeros(1, 4, dtype=torch.int64),
        )
        cos, sin = rotary_tables(torch.cat(parts), dit.axes_dim, dit.theta, device)
        self._keep("content_cos", cos)
        self._keep("content_sin", sin)
        counts = [config.text_max_length, *(len(part) for part in parts)]
        numbers = torch.repeat_interleave(torch.arange(5, dtype=torch.int32), torch.tensor(counts))
        self._keep("segments", numbers.to(device))
        canvas_hw = config.arrangement.canvas_hw
        tables = vae_tables(self.vae.config, canvas_hw, device=device, dtype=dtype)
        for stage, (stage_cos, stage_sin) in enumerate(tables):
            self._keep(f"vae_cos_{stage}", stage_cos)
            self._keep(f"vae_sin_{stage}", stage_sin)
        self.dit.frequencies = self.dit.frequencies.to(device)

    def _keep(self, name: str, tensor: Tensor) -> None:
        self.register_buffer(name, tensor.contiguous(), persistent=False)

    def _tables(self, part: int) -> Tables:
        """Of one content stream: 0 video, 1 its condition, 2 actions, 3 the state."""
        sizes = (self.num_video, self.num_cells, self.config.chunk_size, 1)
        start = sum(sizes[:part])
        rows = slice(start, start + sizes[part])
        return self.content_cos[rows], self.content_sin[rows]

    # -- by lifetime ----------------------------------------------------------------------------

    def caption(self, context: Tensor) -> Caption:
        """``context``: (L, context_in_dim) of the model's dtype."""
        ids, dit = text_ids(context.shape[0]), self.config.dit
        cos, sin = rotary_tables(ids, dit.axes_dim, dit.theta, context.device)
        return Caption(self.dit.encode_text(context, (cos, sin)), cos, sin)

    def observe(self, canvas: Tensor, state: Tensor) -> Observation:
        """``canvas``: (1, 3, H, W) in [-1, 1]; ``state``: (1, D); both of the model's dtype."""
        stages = range(self.num_stages)
        tables = tuple(
            (getattr(self, f"vae_cos_{i}"), getattr(self, f"vae_sin_{i}")) for i in stages
        )
        rows, columns = self.config.latent_hw
        cells = self.vae(canvas, tables)[:rows, :columns].flatten(0, 1)
        dit = self.dit
        code = dit.time_code()
        return Observation(
            dit.encode_stream(dit.video_cond, cells, code, self._tables(1)),
            dit.encode_stream(dit.action_cond, state, code, self._tables(3)),
        )

    def velocities(
        self,
        observation: Observation,
        video: Tensor,
        actions: Tensor,
        time: Tensor,
        guidance: Tensor,
        captions: tuple[Caption, ...],
    ) -> tuple[Tensor, Tensor]:
        """Velocities (V, C) and (K, D), float32, of float32 samples at ``time`` (1,) float32.

        ``captions``: the instruction and, where guided, the empty one; ``guidance`` (2,) float32
        scales video and actions. Mode blocks run once, joint blocks once per caption.
        """
        dit = self.dit
        code = dit.time_code(time)
        video_stream = dit.encode_stream(dit.video, video, code, self._tables(0))
        action_stream = dit.encode_stream(dit.action, actions, code, self._tables(2))
        content = (video_stream, observation.video, action_stream, observation.state)
        answers = []
        for caption in captions:
            tables = (
                torch.cat((caption.cos, self.content_cos)),
                torch.cat((caption.sin, self.content_sin)),
            )
            segments = self.segments[self.config.text_max_length - caption.cos.shape[0] :]
            answers.append(dit.denoise((caption.stream, *content), code, tables, segments))
        if len(answers) == 1:
            return answers[0][0].float(), answers[0][1].float()
        (video_c, actions_c), (video_u, actions_u) = answers
        return (
            guided(video_c, video_u, guidance[0]).float(),
            guided(actions_c, actions_u, guidance[1]).float(),
        )

    def chunk(
        self,
        observation: Observation,
        video: Tensor,
        actions: Tensor,
        guidance: Tensor,
        captions: tuple[Caption, ...],
        prefix: Prefix,
        num_steps: int,
        shift: float,
    ) -> Tensor:
        """Actions (K, D) float32 in model space, from noise (V, C) and (K, D) float32."""

        def answer(step: Step, streams: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            time = guidance.new_full((1,), step.time)
            x_video, x_actions = streams
            v_video, v_actions = self.velocities(
                observation, x_video, x_actions, time, guidance, captions
            )
            return v_video, guide(x_actions, v_actions, step.sigma, prefix)

        plan = schedule(self.config.sampler, num_steps, shift)
        return sample(plan, (video, actions), answer)[1]


def guided(conditional: Tensor, unconditional: Tensor, scale: Tensor) -> Tensor:
    """``u + scale (c - u)``; each operation rounds to the velocities' dtype, the scale does not."""
    difference = conditional - unconditional
    return unconditional + (difference.float() * scale).to(difference.dtype)


def draw_noise(config: ActionConfig, seed: int) -> tuple[Tensor, Tensor]:
    """Noise (V, C) and (K, D) float32 from one CPU generator: video first, then actions.

    Drawn channels first, (1, C, frames, rows, columns) and (1, D, K), then laid out as tokens.
    """
    generator = torch.Generator("cpu").manual_seed(seed)
    video_stream, _, action_stream, _ = config.streams
    shape = (1, config.dit.channels(video_stream), config.num_latents, *config.latent_hw)
    video = torch.randn(shape, generator=generator)
    actions = torch.randn(
        (1, config.dit.channels(action_stream), config.chunk_size), generator=generator
    )
    return video[0].flatten(1).t().contiguous(), actions[0].t().contiguous()
