"""SGLang's ``launch_server`` flags where a chat model is served: read into one frozen record.

Other than an encoder, a chat model has a prefill, a decode and a cache of keys, so flags that mean
nothing there are understood here. ``docs/sglang_flags.md`` has this table in words (a test compares
them); flags that are the same for both stand in ``sglang_flags.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ostinato.cli import sglang_flags as shared
from ostinato.errors import ConfigError

BACKENDS = ("full", "tc_piecewise", "breakable", "disabled")
COMPILERS = ("eager", "inductor")
WHOLE = -1
"""As the size of a chunk: prompts are not cut."""
Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True)
class ChatFlags:
    """What the flags say. ``None``, or empty: not said, and resolved by whoever loads the model.

    Sizes of prefill count tokens, those of decode count answers. ``chunk_tokens`` may be ``WHOLE``.
    """

    prefill_backend: str | None = None
    max_prefill_tokens: int | None = None
    prefill_rungs: tuple[int, ...] = ()
    compiler: str | None = None
    decode_rungs: tuple[int, ...] = ()
    max_decode: int | None = None
    memory_fraction: float | None = None
    chunk_tokens: int | None = None
    context_tokens: int | None = None
    max_running: int | None = None
    is_prefix_cache_on: bool = True


def _one_of(known: Sequence[str]) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in known:
            raise ConfigError(f"{name} {text}: expected one of {', '.join(known)}")
        return text

    return read


def _number(name: str, text: str, kind: type[Number]) -> Number:
    try:
        return kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise ConfigError(f"{name} {text}: expected {what}") from None


def _size(name: str, text: str) -> int:
    value = _number(name, text, int)
    if not 1 <= value < 1 << 31:
        raise ConfigError(f"{name} {text}: expected 1 to {(1 << 31) - 1}")
    return value


def _chunk(name: str, text: str) -> int:
    return WHOLE if text == str(WHOLE) else _size(name, text)


def _sizes(name: str, text: str) -> tuple[int, ...]:
    """Ascending, each once."""
    return tuple(sorted({_size(name, one) for one in text.split()}))


def _fraction(name: str, text: str) -> float:
    value = _number(name, text, float)
    if not 0 < value < 1:
        raise ConfigError(f"{name} {text}: expected a number between 0 and 1")
    return value


@dataclass(frozen=True, slots=True)
class _Reader:
    field: str
    read: Callable[[str, str], Any]
    text: str


UNDERSTOOD: Mapping[str, _Reader] = {
    "--cuda-graph-backend-prefill": _Reader(
        "prefill_backend",
        _one_of(BACKENDS),
        "how prefill is recorded; by default the fastest on this machine (docs/chat.md)",
    ),
    "--cuda-graph-max-bs-prefill": _Reader(
        "max_prefill_tokens", _size, "largest recorded prefill, in tokens; no step takes more"
    ),
    "--cuda-graph-bs-prefill": _Reader("prefill_rungs", _sizes, "recorded prefills, in tokens"),
    "--cuda-graph-tc-compiler": _Reader(
        "compiler", _one_of(COMPILERS), "of tc_piecewise, which it asks for; eager compiles nothing"
    ),
    "--cuda-graph-bs-decode": _Reader("decode_rungs", _sizes, "recorded decodes, in answers"),
    "--cuda-graph-max-bs-decode": _Reader(
        "max_decode", _size, "largest recorded decode, in answers; no more are drawn at once"
    ),
    "--cuda-graph-bs": _Reader("decode_rungs", _sizes, "as --cuda-graph-bs-decode"),
    "--cuda-graph-max-bs": _Reader("max_decode", _size, "as --cuda-graph-max-bs-decode"),
    "--mem-fraction-static": _Reader(
        "memory_fraction", _fraction, "share of the memory for weights and the cache of keys"
    ),
    "--chunked-prefill-size": _Reader(
        "chunk_tokens",
        _chunk,
        "tokens of one piece of a prompt; -1 cuts none and needs --context-length",
    ),
    "--context-length": _Reader("context_tokens", _size, "most tokens of prompt and answer"),
    "--max-running-requests": _Reader("max_running", _size, "most answers drawn at once"),
}
"""Flags with a value that mean for a chat model what they mean in SGLang."""

UNDERSTOOD_SWITCHES = {
    "--disable-radix-cache": "every prompt is computed whole, equal beginnings too"
}

ACCEPTED: Mapping[str, str] = {
    "--attention-backend": "attention is chosen by measured time",
    "--prefill-attention-backend": "attention is chosen by measured time",
    "--decode-attention-backend": "attention is chosen by measured time",
    "--max-prefill-tokens": "see --chunked-prefill-size",
    "--max-total-tokens": "the cache of keys has what --mem-fraction-static leaves",
    "--page-size": "pages have one size",
    "--schedule-policy": "requests are begun in the order of arrival",
    "--schedule-conservativeness": "what finds no memory waits and is not lost",
    "--sampling-backend": "sampling is part of the recording",
    "--grammar-backend": "text is not constrained",
    "--random-seed": "requests have seeds",
    "--tokenizer-mode": "the checkpoint's tokenizer is used",
    "--stream-interval": "every token is sent as it comes",
}
"""With a value, without effect: the words differ from an encoder's."""

ACCEPTED_SWITCHES: Mapping[str, str] = {
    "--enable-multimodal": "images are the normal case",
    "--disable-overlap-schedule": "there is one schedule",
    "--enable-cache-report": "usage tells cached_tokens always",
}

REFUSED: Mapping[str, str] = {
    "--kv-cache-dtype": "keys are kept in the type of the weights",
    "--chat-template": "the checkpoint's template is used",
    "--tokenizer-path": "the checkpoint's tokenizer is used",
    "--tool-call-parser": "no tools are called",
    "--reasoning-parser": "the model does not reason apart",
    "--skip-tokenizer-init": "text goes in and comes out",
    "--is-embedding": "a chat model answers in text",
    "--speculative-algorithm": "tokens are drawn one by one",
    "--quantization": "weights are used as stored",
    "--torchao-config": "weights are used as stored",
    "--disaggregation-mode": "one process does all stages",
    "--encoder-transfer-backend": "one process does all stages",
    "--encoder-urls": "one process does all stages",
    "--language-only": "one process does all stages",
}


def read_chat_flags(arguments: Sequence[str], echo: Callable[[str], object]) -> ChatFlags:
    """The flags that ``serve`` does not have itself, where a chat model is served.

    One line through ``echo`` for a flag without effect; ``ConfigError`` for one that is refused,
    not known, or said twice with different values.
    """
    said: dict[str, Any] = {}
    rest: list[shared.Flag] = []
    switches = {*UNDERSTOOD_SWITCHES, *ACCEPTED_SWITCHES, *shared.ACCEPTED_SWITCHES}
    for flag in shared.split_flags(arguments, switches):
        reader = UNDERSTOOD.get(flag.name)
        if reader is not None:
            if not flag.value:
                raise ConfigError(f"{flag.name} needs a value")
            value = reader.read(flag.name, flag.value)
            if said.setdefault(reader.field, value) != value:
                raise ConfigError(f"{flag.name} {flag.value}: said before with another value")
        elif flag.name in UNDERSTOOD_SWITCHES:
            said["is_prefix_cache_on"] = False
        else:
            rest.append(flag)
    shared.check_flags(rest, echo, fates())
    if said.get("compiler") is not None:
        said.setdefault("prefill_backend", "tc_piecewise")
    return _checked(ChatFlags(**said))


def _checked(flags: ChatFlags) -> ChatFlags:
    if flags.compiler is not None and flags.prefill_backend != "tc_piecewise":
        raise ConfigError(
            f"--cuda-graph-tc-compiler {flags.compiler}: expected with "
            f"--cuda-graph-backend-prefill tc_piecewise, not {flags.prefill_backend}"
        )
    if flags.chunk_tokens == WHOLE and flags.context_tokens is None:
        raise ConfigError(
            f"--chunked-prefill-size {WHOLE}: expected with --context-length, tokens of the "
            "longest prompt and answer, for a prefill as large is recorded; or leave it out"
        )
    return flags


def fates() -> shared.Fates:
    """The shared tables with what differs for chat."""
    own = {*UNDERSTOOD, *UNDERSTOOD_SWITCHES, *ACCEPTED, *ACCEPTED_SWITCHES, *REFUSED}

    def others(table: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in table.items() if name not in own}

    return shared.Fates(
        others(shared.ACCEPTED) | dict(ACCEPTED),
        others(shared.ACCEPTED_SWITCHES) | dict(ACCEPTED_SWITCHES),
        others(shared.REFUSED) | dict(REFUSED),
    )


def table() -> list[tuple[str, str, str]]:
    """Flags whose fate or words are others than an encoder's; for the document."""
    rows = [(name, "understood", reader.text) for name, reader in UNDERSTOOD.items()]
    rows += [(name, "understood", text) for name, text in UNDERSTOOD_SWITCHES.items()]
    rows += [
        (name, "no effect", text) for name, text in ({**ACCEPTED, **ACCEPTED_SWITCHES}).items()
    ]
    rows += [(name, "refused", text) for name, text in REFUSED.items()]
    return sorted(rows)


def help_text() -> str:
    """What a chat understands beside the command's own options; a paragraph a flag."""
    understood = {name: reader.text for name, reader in UNDERSTOOD.items()} | UNDERSTOOD_SWITCHES
    flags = (f"{name}: {text}." for name, text in sorted(understood.items()))
    return "\n\n".join(("A chat takes these flags of SGLang's, too.", *flags))
