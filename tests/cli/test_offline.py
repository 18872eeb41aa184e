"""With name resolution blocked and a local checkpoint the server starts and answers, and nothing
tries to connect.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import json, socket, sys
attempts = []

def is_local(address):
    return not isinstance(address, tuple) or address[0] in ("127.0.0.1", "::1", "localhost")

def refusing(name, place):
    original = getattr(place, name)
    def guarded(*args, **kwargs):
        address = args[0] if name == "getaddrinfo" else args[1]
        if not is_local((address,) if name == "getaddrinfo" else address):
            attempts.append(f"{name} {address}")
            raise socket.gaierror(-3, "name resolution is blocked")
        return original(*args, **kwargs)
    setattr(place, name, guarded)

refusing("getaddrinfo", socket)
class Guarded(socket.socket):
    pass
for name in ("connect", "connect_ex", "sendto"):
    refusing(name, Guarded)
socket.socket = Guarded
for probe in (lambda: socket.create_connection(("huggingface.co", 443)),
              lambda: socket.socket().connect(("192.0.2.1", 443))):
    try:
        probe()
    except OSError:
        pass
assert len(attempts) == 2, attempts  # the guard sees both kinds
attempts.clear()

from typer.testing import CliRunner
from ostinato.cli.main import app
result = CliRunner().invoke(app, sys.argv[1:])
print(json.dumps({"exit": result.exit_code, "out": result.output, "attempts": attempts,
                  "error": repr(result.exception)}))
"""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3-VL with random weights, as transformers saves it."""
    import torch
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    from ostinato.assets import __file__ as assets

    vision = json.loads((Path(assets).parent / "tiny-qwen3-vl.json").read_text())["vision_config"]
    text = {
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": 64,
    }
    torch.manual_seed(0)
    model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(vision_config=vision, text_config=text))
    where = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(where)
    return where


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve", "--encoder-only", "--port", "0", "--once", "--top-patches", "64"],
        ["encode", "--disable-cuda-graph", str(ROOT / "src/ostinato/assets/photograph.jpg")],
    ],
    ids=["serve", "encode"],
)
def test_nothing_connects(checkpoint: Path, arguments: list[str]) -> None:
    command = [sys.executable, "-c", SCRIPT, *arguments, "--model", str(checkpoint)]
    command += ["--device", "cpu"]
    environment = {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=110, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout.splitlines()[-1])
    assert (answer["exit"], answer["attempts"]) == (0, []), answer
    assert "-> 120 x 64" in answer["out"] or "1 x 24 x 20 patches" in answer["out"]
