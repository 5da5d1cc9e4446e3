"""The language server, driven by a scripted client that speaks the protocol."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pygls", reason="needs pygls (the extra `lsp`)")

SAMPLES = Path(__file__).parents[2] / "samples"
PROGRAM = """\
in  bias: f32[n] = 0, s: f32[m?]
out D: f16[m, n]
def twice(x) = 2*x
z = gelu(acc + bias)*s
D = twice(z) + C
"""


class Client:
    """A client of a server in another process. ``encoding`` is the unit of positions that it offers."""

    def __init__(self, encoding: str = "utf-16", *arguments: str) -> None:
        command = [sys.executable, "-m", "evt", "lsp", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._watch = threading.Timer(60, self._process.kill)
        self._watch.start()
        self._number = 0
        self._notes: list[dict[str, Any]] = []
        capabilities = {"general": {"positionEncodings": [encoding]}, "textDocument": {"hover": {}}}
        self.server = self.ask("initialize", processId=None, rootUri=None, capabilities=capabilities)
        self.tell("initialized")

    def _send(self, **message: Any) -> None:
        assert self._process.stdin is not None
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        length = 0
        while (line := self._process.stdout.readline().strip()) != b"":
            name, _, value = line.partition(b":")
            length = int(value) if name == b"Content-Length" else length
        message: dict[str, Any] = json.loads(self._process.stdout.read(length))
        return message

    def tell(self, method: str, **params: Any) -> None:
        self._send(method=method, params=params)

    def ask(self, method: str, **params: Any) -> Any:
        self._number += 1
        self._send(id=self._number, method=method, params=params)
        while (message := self._read()).get("id") != self._number:
            self._notes.append(message)
        assert "error" not in message, message
        return message["result"]

    def published(self) -> list[dict[str, Any]]:
        """Return the next published diagnostics."""
        while True:
            message = self._notes.pop(0) if self._notes else self._read()
            if message.get("method") == "textDocument/publishDiagnostics":
                found: list[dict[str, Any]] = message["params"]["diagnostics"]
                return found

    def open(self, text: str, name: str = "x.evt") -> str:
        uri = f"file:///work/{name}"
        item = {"uri": uri, "languageId": "evt", "version": 1, "text": text}
        self.tell("textDocument/didOpen", textDocument=item)
        return uri

    def change(self, uri: str, text: str, version: int) -> None:
        where = {"uri": uri, "version": version}
        self.tell("textDocument/didChange", textDocument=where, contentChanges=[{"text": text}])

    def at(self, method: str, uri: str, line: int, character: int) -> Any:
        position = {"line": line, "character": character}
        return self.ask(f"textDocument/{method}", textDocument={"uri": uri}, position=position)

    def hover(self, uri: str, line: int, character: int) -> str:
        found = self.at("hover", uri, line, character)
        return "" if found is None else str(found["contents"]["value"])

    def format(self, uri: str) -> Any:
        options = {"tabSize": 4, "insertSpaces": True}
        return self.ask("textDocument/formatting", textDocument={"uri": uri}, options=options)

    def quit(self) -> int:
        self.ask("shutdown")
        self.tell("exit")
        self._watch.cancel()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        return self._process.wait(20)


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    client = Client()
    yield client
    assert client.quit() == 0


def place(text: str, word: str, after: int = 0) -> tuple[int, int]:
    """Return the line and the column of a word."""
    offset = text.index(word, after)
    return text.count("\n", 0, offset), offset - (text.rfind("\n", 0, offset) + 1)


def test_diagnostics_follow_the_text(client: Client) -> None:
    uri = client.open("D = rleu(acc)")
    (found,) = client.published()
    assert found["code"] == "E0201"
    assert found["severity"] == 1
    assert found["source"] == "evt"
    assert "help: did you mean `relu`?" in found["message"]
    assert found["range"] == {"start": {"line": 0, "character": 4}, "end": {"line": 0, "character": 8}}
    client.change(uri, "D = alpha*acc + scale*x", 2)
    (found,) = client.published()
    assert (found["code"], found["severity"]) == ("W0401", 2)
    client.change(uri, "D = relu(acc)", 3)
    assert client.published() == []
    client.change(uri, "in s: f32\nD = acc + s[n]", 4)
    (found,) = client.published()
    assert found["relatedInformation"][0]["message"] == "declared here"
    client.tell("textDocument/didClose", textDocument={"uri": uri})
    assert client.published() == []


def test_every_sample_is_valid(client: Client) -> None:
    for path in sorted(SAMPLES.glob("*.evt")):
        uri = client.open(path.read_text(), path.name)
        assert client.published() == [], path
        assert client.format(uri) == []


def test_hovers_show_types_modes_and_meanings(client: Client) -> None:
    uri = client.open(PROGRAM)
    client.published()
    for word, expected in {
        "bias:": "bias: f32[n]\n```\n\nAn input: a value for each column. Its default is 0.",
        "s: f32[m": "a value for each row, or a single value",
        "f32": "Also `float32`",
        "n] =": "The columns of the product.",
        "D:": "D: f16[m, n]\n```\n\nAn output.",
        "twice(z)": "def twice(x) = 2*x",
        "x) =": "A parameter.",
        "gelu": "`x / 2 * (1 + erf(x / sqrt(2)))`",
        "acc": "The matrix product",
        "+ bias": "acc + bias: f32[m, n]",
        "C\n": "Its type and modes are inferred.",
        "z)": "z: f32[m, n]",
        "out": "Declares outputs",
    }.items():
        assert expected in client.hover(uri, *place(PROGRAM, word)), word
    assert client.hover(uri, 99, 0) == ""


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        ("f32[m, k/128]", "a value for each row and 128 elements of k"),
        ("f32[n/128, k/128]", "a value for each 128 columns and 128 elements of k"),
        ("f32", "a single value"),
    ],
)
def test_hovers_of_scales(client: Client, declared: str, expected: str) -> None:
    operand = "B" if "n/" in declared else "A"
    text = f"gemm(A: e4m3[m, k], B: e4m3[n, k])\nin s: {declared}\n{operand} = s*{operand}\nD = acc\n"
    uri = client.open(text, "scales.evt")
    assert client.published() == []
    assert f"An input: {expected}." in client.hover(uri, 1, 3)
    assert "A float of 8 bits" in client.hover(uri, 0, 9)
    client.change(uri, text.replace("e4m3", "i8"), 2)
    client.published()
    assert "An integer of 8 bits" in client.hover(uri, 0, 8)


def test_definitions(client: Client) -> None:
    uri = client.open(PROGRAM)
    client.published()
    for use, defined in {
        "z) +": "z =",
        "twice(z)": "twice(x)",
        "s\nD": "s: f32[m",
        "bias)": "bias:",
        "x\nz": "x) =",
    }.items():
        found = client.at("definition", uri, *place(PROGRAM, use))
        line, column = place(PROGRAM, defined)
        assert found["range"]["start"] == {"line": line, "character": column}, use
    assert client.at("definition", uri, *place(PROGRAM, "gelu")) is None
    symbols = client.ask("textDocument/documentSymbol", textDocument={"uri": uri})
    assert [each["name"] for each in symbols] == ["bias", "s", "D", "twice", "z", "D"]


def test_completions_while_a_line_is_written(client: Client) -> None:
    def words(text: str) -> list[str]:
        uri = client.open(text)
        client.published()
        lines = text.split("\n")
        return [each["label"] for each in client.at("completion", uri, len(lines) - 1, len(lines[-1]))]

    assert words("")[:4] == ["in", "out", "def", "D"]
    assert words("D = acc\n") == ["in", "out", "def"]
    assert "bf16" in words("in x: ")
    assert words("in x: f32[")[:4] == ["m", "n", "k", "l"]
    assert "n%32" in words("D = acc/max[")
    assert {"z", "scale", "acc", "relu", "sum"} <= set(words("in scale: f32\nz = scale*acc\nD = relu(z + "))
    assert "x" in words("def f(x) = ")
    assert words("D = acc # re") == []
    assert words("in ") == []


def test_formatting(client: Client) -> None:
    uri = client.open("D=acc;E=D\n# c")
    client.published()
    (edit,) = client.format(uri)
    assert edit["newText"] == "D = acc\nE = D\n# c\n"
    assert edit["range"] == {"start": {"line": 0, "character": 0}, "end": {"line": 1, "character": 3}}
    client.change(uri, "D = (", 2)
    assert client.published()[0]["code"] == "E0104"
    assert client.format(uri) == []


def test_positions_count_the_units_of_the_client(client: Client) -> None:
    text = "D = acc\n# \U0001f600\nE = \U0001f600\U0001f600 + foo"
    client.open(text)
    (found,) = client.published()
    assert found["range"]["start"] == {"line": 2, "character": 4}
    assert found["range"]["end"]["character"] == 6
    utf8 = Client("utf-8")
    try:
        assert utf8.server["capabilities"]["positionEncoding"] == "utf-8"
        utf8.open(text)
        (found,) = utf8.published()
        assert found["range"]["end"]["character"] == 8
    finally:
        assert utf8.quit() == 0


def test_every_kind_of_line_end_ends_a_line(client: Client) -> None:
    """The protocol's line ends are LF, CRLF and CR."""
    for end in ("\n", "\r\n", "\r"):
        uri = client.open(f"in bias: f32[n]{end}D = acc + bias{end}E = gelu(bais)")
        (found,) = client.published()
        assert (found["code"], found["range"]["start"]) == ("E0202", {"line": 2, "character": 9})
        assert client.hover(uri, 1, 12).startswith("```evt\nbias\n```")
    (edit,) = client.format(uri)
    assert edit["newText"] == "in  bias: f32[n]\nD = acc + bias\nE = gelu(bais)\n"


def test_options_of_the_command() -> None:
    served = Client("utf-16", "--op", "conv2d")
    try:
        served.open("in C: f16[l, m, n]\nD = acc + C")
        assert [each["code"] for each in served.published()] == ["E0301"]  # a convolution has no batches
    finally:
        assert served.quit() == 0
    served = Client("utf-16", "--op", "grouped_gemm")
    try:
        served.open("linear(A: f16[m, k], B: f16[n, k])\nD = gelu(acc)")
        assert served.published() == []
        served.open("conv2d(A: f16[m, k], B: f16[n, k])\nD = gelu(acc)", "y.evt")
        assert [each["code"] for each in served.published()] == ["E0501"]  # groups are of matrix products
    finally:
        assert served.quit() == 0
