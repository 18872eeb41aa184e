"""The chat in the terminal and the server's greeting, with the stub in the model's place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ostinato.assets.photograph import NAME, clip_bytes, photograph_bytes
from ostinato.cli.chat import HELP, Chat, run_chat
from ostinato.cli.chat_greeting import ask, greet_chat
from ostinato.cli.main import app
from ostinato.cli.run_server import greet_unless_busy
from ostinato.serve.openai.contract import Conversation, Media, Sampling, Text
from ostinato.serve.settings import ServerSettings
from tests.serve.openai.chatting import chat as body
from tests.serve.openai.chatting import server, wait_for
from tests.serve.openai.stub import StubChat
from tests.serve.openai.test_life import post, read


@pytest.fixture
def service() -> Iterator[StubChat]:
    service = StubChat()
    service.warm_up()
    yield service
    service.close()


def said_to(service: StubChat, *lines: str, images: tuple[Path, ...] = ()) -> str:
    written: list[str] = []
    run_chat(service, lines, written.append, images=images)
    return "".join(written)


def test_turns_add_up_and_images_go_with_the_next(service: StubChat, tmp_path: Path) -> None:
    first, second = tmp_path / "a.png", tmp_path / "b.png"
    first.write_bytes(b"aaa")
    second.write_bytes(b"bbbb")
    text = said_to(
        service, "hello", f"/image {second}", "and this?", "/quit", "unheard", images=(first,)
    )
    assert text == "Turn 1: hello 1 seen of 3.\nTurn 3: and this? 2 seen of 7.\n"
    prompt, sampling = service.submitted[1]
    assert isinstance(prompt, Conversation) and sampling == service.defaults
    assert [m.role for m in prompt.messages] == ["user", "assistant", "user"]
    assert prompt.messages[1].parts == (Text("Turn 1: hello 1 seen of 3."),)
    assert prompt.messages[2].parts == (Media("image", b"bbbb", str(second)), Text("and this?"))


def test_beginning_again(service: StubChat) -> None:
    text = said_to(service, "a", "/clear", "b", "/system be short", "c", "", "/help", "/nonsense")
    assert text == (
        "Turn 1: a 0 seen of 0.\nTurn 1: b 0 seen of 0.\nTurn 2: c 0 seen of 0.\n"
        + HELP
        + "/nonsense is not known; see /help\n"
    )


def test_what_cannot_be_served_is_taken_back(service: StubChat, tmp_path: Path) -> None:
    broken = tmp_path / "x.png"
    broken.write_bytes(b"broken")
    text = said_to(service, f"/image {tmp_path}/no.png", f"/image {broken}", "look", "hello")
    assert text == (
        f"{tmp_path}/no.png: No such file or directory\n"
        f"{broken}: [broken-image] PNG data: cut off\n"
        "Turn 1: hello 0 seen of 0.\n"
    )
    service.draw_error = RuntimeError("out of memory")
    assert said_to(service, "hello") == "Turn\nerror: out of memory\n"


def test_ctrl_c_ends_an_answer_and_not_the_chat(
    service: StubChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        def __init__(self) -> None:
            self.items: list[object] = []
            self.is_interrupted = False
            self.put = self.items.append

        def get(self) -> object:
            if not self.is_interrupted:
                self.is_interrupted = True
                raise KeyboardInterrupt
            service.may_draw.set()
            wait_for(lambda: self.items)
            return self.items.pop(0)

    service.may_draw.clear()
    monkeypatch.setattr("ostinato.cli.chat.queue.SimpleQueue", Interrupted)
    chat = Chat(service, lambda text: None, Sampling())
    assert chat.take("hello")
    assert service.finished[0].is_cancelled
    assert len(chat.turns) == 2


def test_the_greeting_chats_with_a_photograph_and_a_video() -> None:
    lines: list[str] = []
    with server(StubChat(), api_key="k") as (port, _):
        settings = ServerSettings(port=port, api_key="k")
        greet_chat(settings, lines.append)
        with pytest.raises(RuntimeError, match=r"answered 400: .*messages"):
            ask(settings, [])
    assert [line[:26].strip() for line in lines] == [NAME, "a second turn", f"a video of {NAME}"]
    num_seen = len(photograph_bytes()) + len(clip_bytes())
    assert lines[2].endswith(f"'Turn 5: And this? 2 seen of {num_seen}.'")
    assert lines[0][27:32].strip() == "15"  # of the stub: 10 for the image, 3 words, 2 roles


def test_a_greeting_that_finds_no_place_leaves_the_server_to_its_clients() -> None:
    service = StubChat()
    service.may_draw.clear()
    lines: list[str] = []
    with server(service, max_queued=1) as (port, _):
        held = post(port, body())
        wait_for(lambda: len(service.running) == 1)
        greet_unless_busy(greet_chat, ServerSettings(port=port), lines.append)
        service.may_draw.set()
        assert read(held)[0] == 200
    assert lines == ["clients are being served already: the greeting ends here"]


def test_an_image_that_is_not_there_ends_the_command_before_anything_is_loaded(
    tmp_path: Path,
) -> None:
    flags = ["chat", "--model", "no-such-model", "--image", str(tmp_path / "none.png")]
    result = CliRunner().invoke(app, flags)
    assert result.exit_code != 0
    assert "none.png; expected a file that exists" in str(result.exception or result.output)
