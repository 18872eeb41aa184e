"""The rules that a recordable callable keeps: one table, read by the probe, the tape and the
doctor.

A *rule* names what is matched, what it does on a GPU while a graph is captured, and what to change.
A *finding* is one breach of one rule at one place. Nothing here looks at tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

from ostinato.errors import RecordingRefused


@dataclass(frozen=True, slots=True)
class Rule:
    """``name`` is stable and printed; ``on_gpu`` and ``fix`` complete a sentence."""

    name: str
    matches: str
    on_gpu: str
    fix: str


@dataclass(frozen=True, slots=True)
class Finding:
    """One breach: the rule, what was called, and ``"file:line"`` of the user's code."""

    rule: Rule
    detail: str
    location: str | None

    @property
    def reason(self) -> str:
        return f"{self.detail} {self.rule.on_gpu}"

    @property
    def fix(self) -> str:
        return self.rule.fix

    def refusal(self) -> RecordingRefused:
        """The exception that a recorder raises for this finding."""
        return RecordingRefused(
            self.reason, rule=self.rule.name, location=self.location, fix=self.fix
        )


_TABLE = (
    Rule(
        "host-scalar",
        "item(), bool(), int(), float(), `if tensor`, range(tensor)",
        "waits for the GPU and hands its value to Python; a replay would repeat the first value",
        "keep the value in a tensor (torch.where, masks), or pass it as a Python argument",
    ),
    Rule(
        "host-read",
        "tolist(), numpy(), np.asarray(tensor), cpu(), pickling, tensor_split at tensor indices",
        "waits for the GPU and copies to the host; a replay would neither copy nor run that Python",
        "prepare host values before the recorded callable and pass them in",
    ),
    Rule(
        "host-compare",
        "torch.equal, torch.allclose",
        "waits for the GPU and hands a Python bool back; a replay would repeat the first answer",
        "use (a == b).all() or isclose().all() and keep the answer in a tensor",
    ),
    Rule(
        "print",
        "repr(), str(), format() and print() of a tensor",
        "waits for the GPU and copies to the host; a replay would print nothing",
        "print outside of the recorded callable, or print only shapes",
    ),
    Rule(
        "address",
        "data_ptr(), __cuda_array_interface__",
        "gives an address to code the recording cannot see; its work would be missing or stale",
        "wrap that code in a torch.library custom operator",
    ),
    Rule(
        "export",
        "__dlpack__(), to_dlpack()",
        "hands memory to another library whose work the recording cannot see",
        "wrap the other library's call in a torch.library custom operator",
    ),
    Rule(
        "device-move",
        "to(another device), cuda(), copy_ between host and device",
        "copies between host and GPU; a capture fails, or a replay reads host memory that has gone",
        "move tensors before the recorded callable; make constants on its device",
    ),
    Rule(
        "host-memory",
        "pin_memory()",
        "allocates host memory, which is not allowed during a capture",
        "stage through pinned memory outside of the recorded callable",
    ),
    Rule(
        "host-operand",
        "an operator on GPU tensors that also takes a CPU tensor",
        "reads the CPU tensor once, at capture; a replay would repeat that value",
        "move the operand to the GPU before the recorded callable, or pass a Python number",
    ),
    Rule(
        "baked-data",
        "torch.tensor, as_tensor, from_numpy, list indices: a tensor from Python data",
        "uploads host memory; a capture fails or keeps the first data for ever",
        "build the tensor outside and pass it in, or use full, arange, or a buffer",
    ),
    Rule(
        "data-dependent",
        "nonzero, unique, masked_select, repeat_interleave without output_size",
        "gives a result whose shape or value on the host depends on data, so it waits for the GPU",
        "use an operator of fixed shape (torch.where, nonzero_static, output_size=)",
    ),
    Rule(
        "boolean-read",
        "x[mask] with a boolean mask",
        "gives a result whose shape depends on data, so it waits for the GPU",
        "use torch.where, or indices of fixed length computed outside",
    ),
    Rule(
        "boolean-write",
        "x[mask] = value with a boolean mask",
        "calls nonzero on the mask and waits for the GPU, although the result has a fixed shape",
        "use torch.where, masked_fill, or masked_scatter",
    ),
    Rule(
        "layout",
        "sparse, mkldnn, nested and quantised results",
        "gives memory whose size depends on data or whose address cannot be fixed",
        "use dense, strided tensors in the recorded callable",
    ),
    Rule(
        "higher-order",
        "flex_attention, cond, while_loop and other higher-order operators",
        "runs Python that the recording cannot see",
        "call an operator, or wrap the code in a torch.library custom operator",
    ),
    Rule(
        "triton-launch",
        "a Triton kernel launched outside an operator",
        "reads and writes memory that the recording cannot see",
        "wrap the launch in a torch.library custom operator",
    ),
    Rule(
        "compiled-frame",
        "torch.compile, a compiled module or function",
        "guards, recompiles and allocates in ways that the recording cannot see",
        "record the plain callable, or call the pieces of an already traced graph directly",
    ),
    Rule(
        "device-wait",
        "torch.cuda.synchronize, Stream.synchronize, Event.synchronize",
        "waits for the GPU, which is not allowed during a capture",
        "wait outside of the recorded callable",
    ),
    Rule(
        "stream",
        "torch.cuda.stream, set_stream, waiting on and recording events",
        "puts work on a stream that the recording does not follow; a replay would leave it out",
        "use the current stream only",
    ),
    Rule(
        "allocator",
        "torch.cuda.empty_cache, gc.collect",
        "returns memory to the driver, which is not allowed during a capture",
        "call it outside of the recorded callable",
    ),
    Rule(
        "reseed",
        "torch.manual_seed, torch.set_rng_state",
        "sets a generator from Python, which a replay would not do",
        "seed before the call, or pass a torch.Generator",
    ),
    Rule(
        "thread",
        "threads started by the callable",
        "does work on another thread, which the recording does not see",
        "do all work on the calling thread",
    ),
    Rule(
        "large-state",
        "undeclared state above the limit that is written",
        "changes memory of the caller at every warm-up; it is too large to be put back",
        "declare it with state=",
    ),
    Rule(
        "input-write",
        "an input that is written and not declared",
        "changes a private copy of the input at every replay; the caller's tensor would not change",
        "declare the input with writes=, or write to a clone",
    ),
    Rule(
        "rebind",
        "tensor.data = ..., set_, resize_ or a view method in place on a tensor from outside",
        "moves memory whose address the recording has fixed",
        "copy into the existing tensor with copy_",
    ),
    Rule(
        "description",
        "storage_offset(), untyped_storage(), _base, is_inference(), is_conj(), is_neg() of an "
        "input, as_strided() of one at an offset in its storage",
        "asks what no key holds; a replay would repeat the first answer",
        "use the shape, stride and values only, or pass the answer as an argument",
    ),
    Rule(
        "host-random",
        "random, numpy.random, os.urandom",
        "draws on the host; a replay would repeat the first draw",
        "draw with torch on the tensors' device, or draw outside and pass the value in",
    ),
    Rule(
        "piece-result",
        "a direct call between pieces whose result changes in shape, type or Python value",
        "cannot reach the pieces that follow, which read fixed addresses",
        "return tensors of fixed shape, and Python values that never change",
    ),
)

RULES: dict[str, Rule] = {rule.name: rule for rule in _TABLE}
"""Every rule by its name."""
