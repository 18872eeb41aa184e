"""SGLang's ``launch_server`` flags that are not ours by name: accepted or refused, one by one.

``docs/sglang_flags.md`` is this table in words (a test compares them); what differs where a chat
model is served stands in ``sglang_chat_flags.py``. A flag that stands in
neither place is refused by name: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ostinato.errors import ConfigError

UNDERSTOOD: dict[str, str] = {
    "--model-path": "as --model",
    "--host": "",
    "--port": "",
    "--api-key": "",
    "--served-model-name": "the name clients use",
    "--dtype": "float32, float16 or bfloat16; auto is as stored",
    "--quantization": "fp8: linear layers in E4M3, rounded at load; other values are refused",
    "--device": "auto, cuda or cpu",
    "--encoder-only": "",
    "--disable-cuda-graph": "every call is direct, like OSTINATO_VIT_CUDA_GRAPH=0",
    "--max-queued-requests": "as --max-queued; counts images and videos",
    "--skip-server-warmup": "no greeting; recordings are made all the same",
}
"""Flags of SGLang that ``ostinato serve`` has itself."""

ACCEPTED: dict[str, str] = {
    "--attention-backend": "attention is chosen by measured time",
    "--mm-attention-backend": "attention is chosen by measured time",
    "--prefill-attention-backend": "an encoder has no prefill",
    "--decode-attention-backend": "an encoder has no decode",
    "--mem-fraction-static": "an encoder has no cache of keys; recordings have --budget-bytes",
    "--cuda-graph-backend-prefill": "an encoder has no prefill",
    "--cuda-graph-max-bs-prefill": "an encoder has no prefill; see --top-patches",
    "--cuda-graph-bs-prefill": "an encoder has no prefill; see --top-patches",
    "--cuda-graph-tc-compiler": "an encoder has no prefill",
    "--cuda-graph-bs-decode": "an encoder has no decode",
    "--cuda-graph-max-bs-decode": "an encoder has no decode",
    "--cuda-graph-max-bs": "an encoder has no decode",
    "--cuda-graph-bs": "an encoder has no decode",
    "--chunked-prefill-size": "an encoder has no prefill",
    "--max-prefill-tokens": "an encoder has no prefill",
    "--max-total-tokens": "an encoder has no cache of keys",
    "--max-running-requests": "requests that arrive together share a replay; see --max-batch",
    "--context-length": "an encoder has no context",
    "--page-size": "an encoder has no cache of keys",
    "--kv-cache-dtype": "an encoder has no cache of keys",
    "--schedule-policy": "an encoder serves in the order of arrival",
    "--schedule-conservativeness": "an encoder serves in the order of arrival",
    "--sampling-backend": "an encoder samples nothing",
    "--grammar-backend": "an encoder samples nothing",
    "--random-seed": "an encoder draws nothing",
    "--chat-template": "an encoder reads no text",
    "--tool-call-parser": "an encoder writes no text",
    "--reasoning-parser": "an encoder writes no text",
    "--tokenizer-path": "an encoder reads no text",
    "--tokenizer-mode": "an encoder reads no text",
    "--log-level": "the log holds starts, recordings and failures",
    "--log-level-http": "requests are counted at /metrics",
    "--stream-interval": "an encoder streams nothing",
    "--watchdog-timeout": "see /health",
}
"""Flags with a value that change nothing here."""

ACCEPTED_SWITCHES: dict[str, str] = {
    "--trust-remote-code": "no code of a checkpoint is ever run",
    "--enable-metrics": "/metrics is always there",
    "--enable-multimodal": "the encoder is what is served",
    "--disable-radix-cache": "an encoder has no cache of keys",
    "--disable-overlap-schedule": "an encoder has no schedule of steps",
    "--disable-cuda-graph-padding": "rungs are checked and used where they are faster",
    "--skip-tokenizer-init": "an encoder reads no text",
    "--log-requests": "requests are counted at /metrics",
    "--enable-cache-report": "see ostinato_service_cache_* at /metrics",
    "--keep-mm-feature-on-device": "results leave over HTTP",
    "--is-embedding": "an encoder gives embeddings",
}
"""The same without a value."""

REFUSED: dict[str, str] = {
    "--load-format": "weights are read from safetensors",
    "--revision": "name a directory with the revision that you want",
    "--torchao-config": "this build serves encoders as stored",
    "--lora-paths": "adapters are not supported",
    "--enable-lora": "adapters are not supported",
    "--node-rank": "one process serves one device",
    "--dist-init-addr": "one process serves one device",
    "--disaggregation-mode": "embeddings are answered over HTTP, no stage hands over to another",
    "--encoder-transfer-backend": "embeddings are answered over HTTP (see POST /pooling)",
    "--language-only": "this server has the encoder only",
    "--encoder-urls": "this server is the encoder",
    "--ssl-keyfile": "put a proxy that speaks TLS in front",
    "--ssl-certfile": "put a proxy that speaks TLS in front",
    "--enable-torch-compile": "recordings are made of the eager operators",
    "--speculative-algorithm": "an encoder has no decode",
    "--config": "give the flags themselves",
    "--json-model-override-args": "sizes come from the checkpoint's configuration",
}

_PARALLEL = (
    "--tp-size --tp --tensor-parallel-size --dp-size --dp --data-parallel-size --pp-size "
    "--pipeline-parallel-size --ep-size --nnodes"
)
ONE_ONLY = dict.fromkeys(_PARALLEL.split(), "one process serves one device")
"""Accepted with the value 1, refused with any other."""


@dataclass(frozen=True, slots=True)
class Flag:
    """One that was given; several values stand with spaces between."""

    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Fates:
    """What becomes of flags that are not understood, for one kind of model."""

    accepted: Mapping[str, str]
    accepted_switches: Mapping[str, str]
    refused: Mapping[str, str]


def split_flags(arguments: Sequence[str], switches: Collection[str]) -> Iterator[Flag]:
    """``--a=1``, ``--a 1``, ``--a 1 2`` and ``--a``; a value never begins with two dashes."""
    at = 0
    while at < len(arguments):
        argument = arguments[at]
        if not argument.startswith("-"):
            raise ConfigError(f"serve has no argument {argument!r}")
        name, equals, value = argument.partition("=")
        at += 1
        values = [value] if equals else []
        while not equals and name not in switches and at < len(arguments):
            if arguments[at].startswith("--"):
                break
            values.append(arguments[at])
            at += 1
        yield Flag(name, " ".join(values) if values else None)


def check_unknown(arguments: Sequence[str], echo: Callable[[str], object]) -> None:
    """Go through the flags that ``serve`` does not have itself, where no chat model is served.

    One line through ``echo`` for a flag without effect; ``ConfigError`` for one that is refused or
    not known.
    """
    fates = Fates(ACCEPTED, ACCEPTED_SWITCHES, REFUSED)
    check_flags(split_flags(arguments, ACCEPTED_SWITCHES), echo, fates)


def check_flags(flags: Iterable[Flag], echo: Callable[[str], object], fates: Fates) -> None:
    """The same for flags that were split already."""
    for flag in flags:
        name = flag.name
        if name in ONE_ONLY:
            if flag.value != "1":
                raise ConfigError(f"{name} {flag.value}: {ONE_ONLY[name]}, so only 1 is accepted")
            echo(f"{name} 1 has no effect: {ONE_ONLY[name]}")
        elif name in fates.accepted:
            if flag.value is None:
                raise ConfigError(f"{name} needs a value")
            echo(f"{name} {flag.value} has no effect: {fates.accepted[name]}")
        elif name in fates.accepted_switches:
            echo(f"{name} has no effect: {fates.accepted_switches[name]}")
        elif name in fates.refused:
            raise ConfigError(f"{name} is refused: {fates.refused[name]}")
        else:
            raise ConfigError(f"{name} is not known; see ostinato serve --help")


def table() -> list[tuple[str, str, str]]:
    """Flag, what becomes of it, and a word about it; for the document."""
    rows = [(name, "understood", text) for name, text in UNDERSTOOD.items()]
    rows += [(name, "no effect", text) for name, text in (ACCEPTED | ACCEPTED_SWITCHES).items()]
    rows += [(name, "1 only", text) for name, text in ONE_ONLY.items()]
    rows += [(name, "refused", text) for name, text in REFUSED.items()]
    return sorted(rows)
