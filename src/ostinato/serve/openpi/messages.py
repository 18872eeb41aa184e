"""The dialects of a message: openpi, RoboArena, and the body of ``/v1/actions/generations``.

Importable without torch.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ostinato.errors import InputError
from ostinato.serve.openpi.codec import DEFAULT_LIMITS, Buffer, CodecLimits, read_map, text_key
from ostinato.serve.openpi.describe import describe, listed
from ostinato.serve.openpi.wishes import RESERVED, read_id

Dialect = Literal["openpi", "roboarena", "generation"]
MSGPACK = "application/msgpack"
_INPUT = ("task", "prompt", "observation")
_PARAMETERS = (
    *("num_inference_steps", "guidance_scale", "guidance_scale_action", "seed", "action_horizon"),
    *("sampler_shift", "noise"),
)
_SINGLE = ("n", "num_outputs", "num_outputs_per_prompt")
_MAX_DEPTH = 16
_ENCODED = ("b64_json", "base64", "values", "data", "dtype", "shape")


@dataclass(frozen=True, slots=True)
class Form:
    """How a generation is answered. ``is_raw``: openpi's map and no envelope around it."""

    is_raw: bool = False
    is_numpy: bool = True
    has_timings: bool = True


@dataclass(frozen=True, slots=True)
class Ask:
    """A decoded message: the observation's entries with the wishes beside them."""

    dialect: Dialect
    entries: Mapping[str, Any]
    session_id: str | None = None
    is_reset: bool = False
    form: Form = field(default_factory=Form)


def read_frame(body: Buffer, limits: CodecLimits = DEFAULT_LIMITS) -> Ask:
    """A frame on ``/``: openpi, or RoboArena where it says ``endpoint`` or ``session_id``."""
    entries = read_map(body, limits)
    if "endpoint" not in entries and "session_id" not in entries:
        return Ask("openpi", entries)
    endpoint = entries.pop("endpoint", None)
    endpoint = "infer" if endpoint is None else endpoint
    if endpoint not in ("infer", "reset"):
        raise InputError(f"[endpoint] endpoint is {describe(endpoint)}; expected infer or reset")
    session_id = read_id(entries.pop("session_id", None), "session_id")
    return Ask("roboarena", entries, session_id, is_reset=endpoint == "reset")


def read_generation(
    body: Buffer, limits: CodecLimits = DEFAULT_LIMITS, *, is_msgpack: bool, is_numpy: bool
) -> Ask:
    """A body of ``POST /v1/actions/generations``, JSON or msgpack.

    A body without ``input`` is the observation itself. ``is_numpy``: the output's form unless the
    body says one. Raises ``InputError`` naming what cannot be.
    """
    message = read_map(body, limits) if is_msgpack else _read_json(bytes(body), limits)
    entries = dict(_observation_of(message))
    runtime = _map_of(message, "runtime")
    for name in _SINGLE:
        if message.get(name, 1) != 1 or _map_of(message, "parameters").get(name, 1) != 1:
            raise InputError(f"[one-output] {name} is not 1; expected one output per request")
    for name, value in _map_of(message, "parameters").items():
        if name not in (*_PARAMETERS, *_SINGLE):
            raise InputError(
                f"[parameter] unknown {name!r}; expected some of {listed(_PARAMETERS)}"
            )
        if name not in _SINGLE and value is not None:
            entries[name] = value
    for name, option in (
        ("prefix_cache", "enable_prefix_cache"),
        ("cuda_graph", "enable_cuda_graph"),
    ):
        if runtime.get(name) is not None:
            entries[option] = runtime[name]
    for name in (RESERVED, "enable_cuda_graph", "enable_prefix_cache"):
        if "input" in message and message.get(name) is not None:
            entries[name] = message[name]
    form = _form_of(runtime, is_numpy=is_numpy, is_msgpack=is_msgpack)
    return Ask("generation", entries if is_msgpack else _opened(entries), form=form)


def _observation_of(message: Mapping[str, Any]) -> Mapping[str, Any]:
    if "input" not in message:
        return {k: v for k, v in message.items() if k not in ("parameters", "runtime", "model")}
    given = message["input"]
    if isinstance(given, list):
        if len(given) != 1:
            raise InputError(f"[one-input] input is {describe(given)}; expected one observation")
        given = given[0]
    if not isinstance(given, Mapping):
        raise InputError(f"[input] input is {describe(given)}; expected a map")
    given = {text_key(key): value for key, value in given.items()}
    unknown = set(given) - set(_INPUT)
    if unknown:
        raise InputError(f"[input] input holds {listed(unknown)}; expected {listed(_INPUT)}")
    observation = given.get("observation")
    if not isinstance(observation, Mapping):
        raise InputError(
            f"[input] input.observation is {describe(observation)}; expected a map with images and "
            "state"
        )
    prompts = {name: given[name] for name in ("task", "prompt") if given.get(name) is not None}
    return {**{text_key(key): value for key, value in observation.items()}, **prompts}


def _map_of(message: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InputError(f"[{name}] {name} is {describe(value)}; expected a map")
    return {text_key(key): entry for key, entry in value.items()}


def _form_of(runtime: Mapping[str, Any], *, is_numpy: bool, is_msgpack: bool) -> Form:
    response = runtime.get("response_format", "envelope")
    output = runtime.get("output_format", "numpy" if is_numpy else "list")
    timings = runtime.get("return_timing", True)
    if response not in ("envelope", "raw"):
        raise InputError(
            f"[runtime] response_format is {describe(response)}; expected envelope or raw"
        )
    if output not in ("numpy", "list"):
        raise InputError(f"[runtime] output_format is {describe(output)}; expected numpy or list")
    if output == "numpy" and not is_numpy:
        raise InputError(f"[runtime] output_format numpy needs a reply in {MSGPACK} (Accept)")
    if not isinstance(timings, bool):
        raise InputError(f"[runtime] return_timing is {describe(timings)}; expected true or false")
    return Form(response == "raw", output == "numpy", timings)


def _read_json(body: bytes, limits: CodecLimits) -> dict[str, Any]:
    """A JSON object; refused before it is parsed where it holds too many values."""
    num_values = body.count(b",") + body.count(b"[") + body.count(b"{")
    if num_values > limits.max_values:
        raise InputError(
            f"[too-many-values] about {num_values} values, expected at most {limits.max_values}; "
            'send images as {"base64": JPEG, PNG or raw bytes}, or the request as msgpack'
        )
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InputError(f"[json] {str(error)[:200]}") from None
    if not isinstance(message, dict):
        raise InputError(f"[json] the body is {describe(message)}; expected an object")
    return message


def _opened(value: Any, depth: int = 0) -> Any:
    """JSON's stand-ins for bytes and arrays replaced by these."""
    if isinstance(value, Mapping):
        if depth > _MAX_DEPTH:
            raise InputError(f"[too-deep] expected at most {_MAX_DEPTH} levels")
        if value and set(value) <= set(_ENCODED) and set(value) - {"dtype", "shape"}:
            return _stand_in(value)
        return {key: _opened(entry, depth + 1) for key, entry in value.items()}
    return value


def _stand_in(value: Mapping[str, Any]) -> Any:
    """``{base64}`` is a file; with ``dtype`` and ``shape``, as ``{values, ...}``, an array."""
    content = next(value[name] for name in _ENCODED[:4] if name in value)
    dtype, shape = value.get("dtype"), value.get("shape")
    if isinstance(content, str):
        try:
            content = base64.b64decode(content.rpartition(",")[2], validate=True)
        except (binascii.Error, ValueError) as error:
            raise InputError(f"[base64] {error}") from None
        if dtype is None and shape is None:
            return content
    try:
        kind = np.dtype(str(dtype or "uint8"))
        if kind.kind not in "biuf":
            raise ValueError(f"{kind} holds no numbers")
        if isinstance(content, bytes):
            array: np.ndarray[Any, Any] = np.frombuffer(content, kind)
        elif kind.kind == "f" or np.asarray(content).dtype.kind in "biu":
            array = np.array(content, kind)  # refuses integers that do not fit
        else:
            raise ValueError("these are no integers")
        return array if shape is None else array.reshape(shape)
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(
            f"[array] {describe(content)} as dtype {describe(dtype)}, shape {shape}: {error}"[:300]
        ) from None
