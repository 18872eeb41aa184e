"""The doctor's own rules beside those of ``rules.py``; numbers of both; hints for known code."""

from __future__ import annotations

from ostinato.recording.doctor_report import Diagnosis, Severity
from ostinato.recording.rules import RULES, Rule

NUMBERS: dict[str, str] = {
    **dict.fromkeys(("host-scalar", "host-read", "host-compare", "print"), "L1"),
    **dict.fromkeys(("data-dependent", "boolean-read", "boolean-write"), "L1"),
    **dict.fromkeys(("device-move", "host-memory", "host-operand", "host-tensor"), "L2"),
    "baked-data": "L2",
    **dict.fromkeys(("baked-scalar", "baked-branch"), "L3"),
    "python-state": "L4",
    "external-read": "L5",
    **dict.fromkeys(("input-write", "large-state", "rebind", "state-write"), "L6"),
    **dict.fromkeys(("random", "reseed"), "L7"),
    "first-call": "L8",
    **dict.fromkeys(("device-wait", "stream", "allocator", "thread"), "L9"),
    **dict.fromkeys(("host-random", "clock", "environment", "input-output"), "L10"),
    "unkeyable": "L11",
    **dict.fromkeys(("grad", "autocast", "training", "hooks"), "L12"),
    **dict.fromkeys(("no-fake", "triton-launch", "compiled-frame", "higher-order"), "L13"),
    **dict.fromkeys(("result-alias", "result-value", "result-constant"), "L14"),
    "segments": "L15",
    "shape-branch": "L16",
    "source": "L17",
}

_REFUSED = (
    Rule(
        "host-tensor",
        "arange, zeros and their like without device=, used together with GPU tensors",
        "fails for want of one device, or, as an index, is copied to the GPU at every call",
        "make it on the tensors' device: device=x.device",
    ),
    Rule(
        "baked-scalar",
        "a number, size or shape among an operator's arguments that differs between two calls",
        "is fixed at recording; a replay would repeat the first value",
        "keep the value in a tensor, or pass it as an argument so that it becomes part of the key",
    ),
    Rule(
        "baked-branch",
        "two calls of equal description that run different operators",
        "is decided in Python at recording; a replay would repeat the first decision",
        "decide with torch.where, or pass what decides as an argument",
    ),
    Rule(
        "python-state",
        "an attribute, global or container that every call changes",
        "is Python, which does not run at replay: the change would happen once and never again",
        "keep the state in a buffer that is written in place, or pass it in and return it",
    ),
    Rule(
        "unkeyable",
        "an argument that has no exact place in a key",
        "cannot be told apart from others of its kind, so no recording could be chosen by it",
        "pass tensors, numbers, strings, enums or dataclasses of them; bind other objects outside",
    ),
    Rule(
        "result-value",
        "a Python value in the result that differs between two calls, or has no place in a key",
        "is fixed at recording; a replay would repeat the first value",
        "return tensors, and Python values that never change",
    ),
    Rule(
        "segments",
        "segment offsets that break the contract",
        "reads or leaves out rows that belong to another segment, without an error",
        "see ostinato.recording.doctor_segments.check_segments",
    ),
    Rule(
        "call-fails",
        "an exception of the callable",
        "ends the call, so the rest of it was not examined",
        "make the plain call work first; on a machine without a GPU put everything on the CPU",
    ),
)
_DIRECT = (
    Rule(
        "grad",
        "grad mode with a tensor that requires a gradient",
        "needs an autograd graph, which a recording does not build: every call is served directly",
        "call it under torch.inference_mode() or torch.no_grad()",
    ),
)
_INFO = (
    Rule(
        "external-read",
        "a tensor from outside that no attribute, global or closure of the callable holds",
        "is read at a fixed address; the recording keeps it alive and does not see it replaced",
        "register it as a buffer, or pass it in",
    ),
    Rule(
        "state-write",
        "a parameter, buffer or other tensor from outside that is written",
        "is written by every replay, as by every direct call; trial calls are undone",
        "nothing, or declare it with state= if it is large",
    ),
    Rule(
        "random",
        "random draws",
        "draws from a generator whose offset moves with every replay: successive calls differ",
        "nothing; seed with torch.manual_seed before the call",
    ),
    Rule(
        "first-call",
        "a first call that does other work or leaves other Python state than the second",
        "is lazy set-up; a recording is made after it",
        "nothing, or set up in the constructor",
    ),
    Rule(
        "clock",
        "time.time, time.perf_counter and their like",
        "reads the clock on the host; a replay would not",
        "measure around the call",
    ),
    Rule(
        "environment",
        "reading an environment variable",
        "reads the environment at recording only; a later change would not show",
        "read it once, outside",
    ),
    Rule(
        "input-output",
        "print, open, logging",
        "happens at recording and not at replay",
        "move it out of the recorded callable",
    ),
    Rule(
        "autocast",
        "autocast around the call",
        "is part of the key, with its cache off",
        "nothing, or cast the weights once",
    ),
    Rule(
        "training",
        "a module in training mode",
        "is part of the key; dropout draws and batch statistics move",
        "call eval() for inference",
    ),
    Rule(
        "hooks",
        "a module with forward hooks",
        "runs at recording and not at replay; adding or removing one makes a new recording",
        "remove hooks that have an effect of their own",
    ),
    Rule(
        "no-fake",
        "a custom operator without a fake implementation",
        "is recorded as one call; torch.compile and FakeTensor cannot see through it",
        "register one with torch.library.register_fake",
    ),
    Rule(
        "result-alias",
        "a result that is an input, a parameter, or a view of one or of another result",
        "comes back with the same relation",
        "nothing; return a clone if the caller writes to it",
    ),
    Rule(
        "result-constant",
        "Python values in the result",
        "comes back as it was at recording",
        "nothing, as long as it never changes",
    ),
    Rule(
        "shape-branch",
        "two examples of different shape that run different operators",
        "is decided at recording: exact recordings are right, a rung would serve one of the two",
        "do not declare that dimension with grows=, or make the operators equal for all sizes",
    ),
    Rule(
        "source",
        "a suspicious call in the source that this example did not reach",
        "would be refused if another input reached it",
        "move it out of the recorded callable, or examine with an input that reaches it",
    ),
)

DOCTOR_RULES: dict[str, tuple[Rule, Severity]] = {
    **{rule.name: (rule, "refused") for rule in (*RULES.values(), *_REFUSED)},
    **{rule.name: (rule, "direct") for rule in _DIRECT},
    **{rule.name: (rule, "info") for rule in _INFO},
}
"""Every rule that the doctor can name, with what a breach means."""

_HOST_RULES = {"host-read", "host-scalar", "data-dependent", "baked-data", "device-move"}
_HINTS = (
    (
        ("/transformers/vision_utils.py", "/transformers/models/"),
        "prepare its metadata outside and pass it in (cu_seqlens, max_seqlen, position_ids as "
        "keyword arguments, with an attention that takes offsets), or use ostinato.load_encoder",
    ),
)
"""Known code that breaks rules, and what to do about it there."""


def diagnosis(rule: str, detail: str, location: str | None) -> Diagnosis:
    """The finding of a breach, in the doctor's words."""
    found, severity = DOCTOR_RULES[rule]
    fix = _hint(rule, location) or found.fix
    return Diagnosis(rule, NUMBERS.get(rule), severity, location, detail, found.on_gpu, fix)


def _hint(rule: str, location: str | None) -> str | None:
    if rule not in _HOST_RULES or location is None:
        return None
    path = location.replace("\\", "/")
    return next((hint for parts, hint in _HINTS if any(part in path for part in parts)), None)
