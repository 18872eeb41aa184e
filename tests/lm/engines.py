"""Small engines around a decoder, with a tokenizer of bytes and without images."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from ostinato.kernels.gate import Numerics
from ostinato.lm.backends import FULL, PrefillBackend
from ostinato.lm.build import EngineSizes, build_engine
from ostinato.lm.contract import ChatDelta, Media, Prompt, SamplingParams
from ostinato.lm.engine import Engine, Ticket
from ostinato.lm.load import load_decoder
from ostinato.lm.models.qwen import Qwen
from ostinato.lm.text import TextStream
from ostinato.recording.config import GraphConfig

OFF = GraphConfig(mode="off")
GREEDY = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)


def decode_bytes(ids: Sequence[int]) -> str:
    return bytes(i for i in ids if i < 256).decode(errors="replace")


def tiny(name: str = "tiny-qwen3-vl") -> Qwen:
    return load_decoder(name, device=torch.device("cpu"))


def make_engine(
    model: Qwen,
    *,
    graph: GraphConfig = OFF,
    encode: Callable[[Sequence[Media]], None] = lambda media: None,
    backend: PrefillBackend = FULL,
    num_levels: int = 3,
    numerics: Numerics = "fast",
    **sizes: int,
) -> Engine:
    chosen = {
        "num_pages": 64,
        "page_size": 4,
        "max_batch": 4,
        "max_chunk": 16,
        "max_length": 128,
    } | sizes
    engine = build_engine(
        model,
        EngineSizes(**chosen),
        graph=graph,
        eos_ids=frozenset({258}),
        encode=encode,
        num_levels=num_levels,
        backend=backend,
        numerics=numerics,
    )
    engine.start()
    return engine


@dataclass
class Reply:
    """Collects deltas; ``wait`` until the last one."""

    deltas: list[ChatDelta] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)

    def __call__(self, delta: ChatDelta) -> None:
        self.deltas.append(delta)
        if delta.finish_reason is not None:
            self.done.set()

    def wait(self) -> Reply:
        assert self.done.wait(60), "no end after a minute"
        return self

    @property
    def token_ids(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.token_ids]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reason(self) -> str | None:
        return self.deltas[-1].finish_reason


def ask(
    engine: Engine, prompt: Prompt | list[int], params: SamplingParams = GREEDY
) -> tuple[Reply, Ticket]:
    given = prompt if isinstance(prompt, Prompt) else Prompt.of_text(prompt)
    reply = Reply()
    ticket = engine.submit(given, params, TextStream(decode_bytes, params.stop), reply)
    return reply, ticket
