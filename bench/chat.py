"""How fast is a chat with images, beside transformers in the same run?

Qwen3-VL-8B's published sizes, random weights drawn on the GPU and shared by ours and transformers.
A request goes from a PIL image and text to tokens, in this process; its image is new each time, so
nothing is found in a cache. Bytes stand in for the published tokenizer on both sides.

``start``: seconds to ready, but for reading files, of a first and of a second start.
``first_token``: from the call to the first token, the image's preparation included. ``decode``:
milliseconds for each further token, alone. ``load``: clients that ask again as soon as they are
answered, images of mixed sizes. ``backends``: start, memory and first token of each way to record
a prefill, on few rungs; ``numerics``: what "invariant" costs. Medians, variants in turns.

    python -m bench.chat [--sections start,first_token,decode,load,backends,numerics] [--layers N]
                         [--backends full,breakable,tc_piecewise,disabled] [--no-peer]
                         [--out FILE] [--dry]
"""

from __future__ import annotations

import argparse
import gc
import inspect
import statistics
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from PIL import Image

import ostinato
from bench.peers.transformers_chat import Peer, make_model
from bench.report import Report
from ostinato.lm.contract import ChatDelta, SamplingParams
from ostinato.vlm.chat import Chat
from ostinato.weights.chat_tokenizer import ByteChatTokenizer

SECTIONS = ("start", "first_token", "decode", "load", "backends", "numerics")
BACKENDS = ("full", "breakable", "tc_piecewise", "disabled")
SIDES = (224, 448, 896)
MIXED = ((224, 224), (448, 448), (320, 544), (640, 480), (896, 896))
CLIENTS = {1: 6, 8: 4, 32: 2}
"""Clients -> how often each asks."""
WORDS = "What is in this picture? Answer in one short sentence, please."
SIZES: dict[str, Any] = {"max_length": 32_768, "max_batch": 32}
"""The cache takes what the GPU has left, as in service."""
TINY: dict[str, Any] = {"num_pages": 128, "max_length": 512, "max_batch": 2, "top_patches": 256}
FEW: dict[str, Any] = {
    "num_pages": 4096,
    "decode_rungs": (1, 32),
    "prefill_rungs": (512, 2048),
    "top_patches": 4096,
}
FEW_TINY: dict[str, Any] = {"decode_rungs": (2,), "prefill_rungs": (128,)}
GREEDY: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
MIB = 1 << 20
Call = Callable[[Image.Image], object]


class Pictures:
    """A new image each time: noise that no cache has seen."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self._lock = threading.Lock()

    def of(self, height: int, width: int) -> Image.Image:
        with self._lock:
            noise = self._draw.integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
        return Image.fromarray(noise).resize((width, height))


def question(image: Image.Image) -> list[dict[str, Any]]:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": WORDS}]
    return [{"role": "user", "content": parts}]


def percentiles_ms(times: Sequence[float]) -> dict[str, float]:
    middle, high = np.percentile(times, [50, 99]) * 1e3
    return {"p50_ms": round(float(middle), 2), "p99_ms": round(float(high), 2)}


class Bench:
    """One model, ours and transformers' over the same weights; a method for each section."""

    def __init__(self, options: argparse.Namespace) -> None:
        is_dry = options.dry
        self.device = torch.device("cpu") if is_dry else torch.device("cuda", 0)
        dtype = torch.float32 if is_dry else torch.bfloat16
        self.model = make_model(
            layers=options.layers, device=self.device, dtype=dtype, is_tiny=is_dry
        )
        self.peer = None if options.no_peer else Peer(self.model)
        self.backends = tuple(options.backends.split(","))
        self.repeats, self.num_tokens = (1, 4) if is_dry else (7, 64)
        self.sides = (256,) if is_dry else SIDES
        self.mixed = ((256, 256), (128, 512)) if is_dry else MIXED
        self.clients = {1: 1, 2: 2} if is_dry else CLIENTS
        self.sizes, self.few = (TINY, FEW_TINY) if is_dry else (SIZES, FEW)
        self.pictures = Pictures()
        self._chat: Chat | None = None

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    # -- start ----------------------------------------------------------------------------------

    def load(self, **how: Any) -> tuple[Chat, dict[str, Any]]:
        """A chat that is ready, and what that took."""
        self.wait()
        begin = time.perf_counter()
        sizes = self.sizes | how
        chat = ostinato.load_chat(
            self.model, tokenizer=ByteChatTokenizer(), device=self.device, **sizes
        )
        self.wait()
        seconds = time.perf_counter() - begin
        stats = chat.stats()
        held = {"encoder": stats.encoder, **stats.engine.recordings}
        return chat, {
            "ready_s": round(seconds, 2),
            "recordings": {name: one.num_recordings for name, one in held.items()},
            "recording_s": {name: round(one.recording_seconds, 2) for name, one in held.items()},
            "recorded_MiB": round(stats.encoder.device_bytes_held / MIB, 1),
            "refusals": [text for one in held.values() for text in one.refusals.values()][:3],
        }

    def start(self) -> dict[str, Any]:
        """The second of two starts: kernels are compiled and chosen, as on a machine in use."""
        self._chat, first = self.load()
        self.close()
        self._chat, facts = self.load()
        held = sum(p.numel() * p.element_size() for p in self.model.parameters())
        return {"weights_MiB": round(held / MIB), "first_ready_s": first["ready_s"], **facts}

    @property
    def chat(self) -> Chat:
        if self._chat is None:
            self._chat, _ = self.load()
        return self._chat

    def close(self) -> None:
        """Give the chat's memory back."""
        if self._chat is not None:
            self._chat.close()
        self._chat = None
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    # -- one request at a time ------------------------------------------------------------------

    def first_token(self) -> list[dict[str, Any]]:
        rows = []
        for side in self.sides:
            ids = self.chat.tokenize(question(self.pictures.of(side, side)))
            calls: dict[str, Call] = {"ours_ms": lambda image: self._ours(image, 1)}
            for attention in ("sdpa", "eager") if self.peer is not None else ():
                calls[f"transformers_{attention}_ms"] = self._theirs(attention, ids, 1)
            row = {"image": f"{side}x{side}", "prompt_tokens": len(ids)}
            row |= self._medians_ms(calls, side)
            rows.append(_with_ratio(row))
        return rows

    def decode(self) -> dict[str, Any]:
        """Alone, after a prompt with one image: what every token but the first takes."""
        side, count = self.sides[len(self.sides) // 2], self.num_tokens
        ids = self.chat.tokenize(question(self.pictures.of(side, side)))
        calls: dict[str, Call] = {
            "first": lambda image: self._ours(image, 1),
            "all": lambda image: self._ours(image, 1 + count),
        }
        few = max(count // 2, 1)
        if self.peer is not None:
            calls["their_first"] = self._theirs("sdpa", ids, 1)
            calls["their_all"] = self._theirs("sdpa", ids, 1 + few)
        found = self._medians_ms(calls, side)
        row = {"image": f"{side}x{side}", "prompt_tokens": len(ids), "tokens": count}
        row["ours_ms"] = round((found["all"] - found["first"]) / count, 3)
        if self.peer is not None:
            theirs = (found["their_all"] - found["their_first"]) / few
            row["transformers_sdpa_ms"] = round(theirs, 3)
        return _with_ratio(row)

    def _ours(self, image: Image.Image, count: int) -> object:
        return self.chat.generate(question(image), max_tokens=count, **GREEDY)

    def _theirs(self, attention: str, ids: list[int], count: int) -> Call:
        peer = self.peer
        assert peer is not None

        def call(image: Image.Image) -> None:
            peer.use(attention)
            with torch.inference_mode():
                peer.answer(image, ids, count)

        return call

    def _medians_ms(self, calls: dict[str, Call], side: int) -> dict[str, float]:
        times: dict[str, list[float]] = {name: [] for name in calls}
        warm = 1 if self.repeats == 1 else 2
        for turn in range(self.repeats + warm):
            for name, call in calls.items():
                image = self.pictures.of(side, side)
                self.wait()
                begin = time.perf_counter()
                call(image)
                self.wait()
                if turn >= warm:
                    times[name].append(time.perf_counter() - begin)
        return {name: round(statistics.median(t) * 1e3, 3) for name, t in times.items()}

    # -- many -----------------------------------------------------------------------------------

    def load_of_clients(self) -> list[dict[str, Any]]:
        rows = [self._under(num, asks) for num, asks in self.clients.items()]
        if self.peer is not None:
            rows.append(self._their_throughput())
        return rows

    def _under(self, num_clients: int, asks: int) -> dict[str, Any]:
        visits = [Client(self, number, asks) for number in range(num_clients)]
        threads = [threading.Thread(target=one.run) for one in visits]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.perf_counter() - begin
        num_tokens = num_clients * asks * self.num_tokens
        assert sum(one.num_tokens for one in visits) == num_tokens, "a request was not answered"
        row = {
            "clients": num_clients,
            "requests": num_clients * asks,
            "seconds": round(seconds, 3),
            "tokens_per_s": round(num_tokens / seconds, 1),
            "first_token": percentiles_ms([t for one in visits for t in one.first_s]),
            "further_tokens": percentiles_ms([t for one in visits for t in one.gaps_s]),
        }
        print(row, flush=True)
        return row

    def _their_throughput(self) -> dict[str, Any]:
        """One after the other: transformers has no server."""
        begin = time.perf_counter()
        for height, width in self.mixed[:2]:
            image = self.pictures.of(height, width)
            ids = self.chat.tokenize(question(image))
            self._theirs("sdpa", ids, self.num_tokens)(image)
        self.wait()
        rate = 2 * self.num_tokens / (time.perf_counter() - begin)
        return {"transformers_sdpa_tokens_per_s": round(rate, 1)}

    # -- ways to record a prefill ---------------------------------------------------------------

    def rows_of_backends(self) -> list[dict[str, Any]]:
        self.close()
        rows = []
        for name in self.backends:
            row: dict[str, Any] = {"backend": name}
            try:
                row |= self._with_backend(name)
            except Exception as error:  # the next one can be measured all the same
                row["error"] = repr(error)[:400]
            self.close()
            print(row, flush=True)
            rows.append(row)
        return rows

    def _with_backend(self, name: str) -> dict[str, Any]:
        if "prefill_backend" in inspect.signature(ostinato.load_chat).parameters:
            how: dict[str, Any] = {"prefill_backend": name}
        elif name == "full":
            how = {}
        else:
            return {"skipped": "load_chat has no prefill_backend"}
        self._chat, facts = self.load(**self.few, **how)
        calls: dict[str, Call] = {"ours_ms": lambda image: self._ours(image, 1)}
        first = {f"{side}x{side}": self._medians_ms(calls, side)["ours_ms"] for side in self.sides}
        return {**facts, "first_token_ms": first}

    # -- what "invariant" costs -----------------------------------------------------------------

    def rows_of_numerics(self) -> list[dict[str, Any]]:
        """First token and further tokens, alone and with eight clients, by numerics."""
        rows = []
        for name in ("fast", "invariant"):
            self.close()
            self._chat, facts = self.load(**self.few, numerics=name)
            side, count = self.sides[len(self.sides) // 2], self.num_tokens
            calls: dict[str, Call] = {
                "first_token_ms": lambda image: self._ours(image, 1),
                "all_ms": lambda image, n=count: self._ours(image, 1 + n),  # type: ignore[misc]
            }
            found = self._medians_ms(calls, side)
            further = (found["all_ms"] - found["first_token_ms"]) / count
            row = {"numerics": name, **facts, **found, "token_ms": round(further, 3)}
            num_clients = min(8, max(self.clients))
            rows.append(row | self._under(num_clients, self.clients[num_clients]))
        self.close()
        return rows


class Client:
    """Asks, waits for the answer, and asks again."""

    def __init__(self, bench: Bench, number: int, asks: int) -> None:
        self._bench = bench
        self._number = number
        self._asks = asks
        self.first_s: list[float] = []
        self.gaps_s: list[float] = []
        self.num_tokens = 0

    def run(self) -> None:
        bench = self._bench
        for turn in range(self._asks):
            height, width = bench.mixed[(self._number + turn) % len(bench.mixed)]
            image = bench.pictures.of(height, width)
            arrived: list[float] = []
            is_over = threading.Event()

            def take(
                delta: ChatDelta,
                arrived: list[float] = arrived,
                is_over: threading.Event = is_over,
            ) -> None:
                arrived += [time.perf_counter()] * len(delta.token_ids)
                if delta.finish_reason is not None:
                    is_over.set()

            begin = time.perf_counter()
            params = SamplingParams(max_tokens=bench.num_tokens, **GREEDY)
            bench.chat.submit(question(image), params, take)
            if not is_over.wait(120):
                return
            self.first_s.append(arrived[0] - begin)
            self.gaps_s += [b - a for a, b in pairwise(arrived)]
            self.num_tokens += len(arrived)


def _with_ratio(row: dict[str, Any]) -> dict[str, Any]:
    """Ours over the better of transformers'."""
    theirs = [value for name, value in row.items() if name.startswith("transformers_")]
    if theirs:
        row["ratio"] = round(row["ours_ms"] / min(theirs), 4)
    print(row, flush=True)
    return row


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sections", default=",".join(SECTIONS))
    parser.add_argument("--backends", default=",".join(BACKENDS))
    parser.add_argument("--layers", type=int, default=None, help="of the decoder")
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--out", default=None)
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU")
    options = parser.parse_args(given)
    wanted = options.sections.split(",")
    for name in wanted:
        if name not in SECTIONS:
            parser.error(f"--sections: {name}; expected some of {', '.join(SECTIONS)}")
    report = Report("chat" + ("-dry" if options.dry else ""), options.out)
    bench = report.section("model", lambda: Bench(options), is_kept=False)
    if bench is None:
        return report.finish()
    report.rows["layers"] = bench.model.config.text_config.num_hidden_layers
    measures = {
        "start": bench.start,
        "first_token": bench.first_token,
        "decode": bench.decode,
        "load": bench.load_of_clients,
        "backends": bench.rows_of_backends,
        "numerics": bench.rows_of_numerics,
    }
    for name in SECTIONS:
        if name in wanted:
            report.section(name, measures[name])
    bench.close()
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
