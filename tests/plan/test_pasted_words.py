"""The words of a pasted command: read as a shell reads them, bounded, and never repeated."""

import os
import re
from pathlib import Path
from typing import Any

import pytest
from command import refusal, run
from hybrid_blocks.errors import HybridBlocksError
from hybrid_blocks.model import PlanError
from hybrid_blocks.tools.read.command import read_command
from hybrid_blocks.tools.read.features import read_features
from hybrid_blocks.tools.read.options import LARGEST
from hybrid_blocks.tools.read.words import LONGEST, find_server

ROOT = Path(__file__).parent.parent.parent
SERVE = "vllm serve Phi-4"
ABC = {"A": "1", "B": "2", "C": "3"}


@pytest.mark.parametrize(
    ("text", "arguments", "environment"),
    [
        ("vllm serve m # it's a comment", ["m"], {}),
        ("vllm serve m --api-key a#b -tp 2", ["m", "--api-key", "a#b", "-tp", "2"], {}),
        ("vllm serve m '#a' \"b # c\"", ["m", "#a", "b # c"], {}),
        ("vllm serve m\\\n -tp \\\n 2\nwait", ["m", "-tp", "2"], {}),
        ("vllm serve a\\\nb", ["ab"], {}),
        ("vllm serve m -tp 2 2>&1 | tee log", ["m", "-tp", "2"], {}),
        ("vllm serve m>a.log 2>> b.log < /dev/null &", ["m"], {}),
        ("vllm serve m &> log -tp 2", ["m", "-tp", "2"], {}),
        ("A=1 vllm serve m", ["m"], {"A": "1"}),
        ("A=1; vllm serve m $A", ["m", "1"], {}),
        ("export A=1 && vllm serve m", ["m"], {"A": "1"}),
        ("A=1\nexport A B\nA=2\nvllm serve m", ["m"], {"A": "2"}),
        ("A='x y'; vllm serve $A \"$A\" '$A' \\$A", ["x", "y", "x y", "$A", "$A"], {}),
        ("A='x y'\nB=$A vllm serve \"${B}\" ${C:-7} ${D-}", ["$B", "7"], {"B": "x y"}),
        ("A='-tp 2'; vllm serve m$A", ["m-tp", "2"], {}),
        ("$ env A=1 nohup /usr/bin/vllm serve m", ["m"], {"A": "1"}),
        ("docker run -it -e A=1 --env B=2 -eC=3 i vllm serve m", ["m"], ABC),
        ("A=1 B=2 docker run -e A --gpus all vllm/vllm-openai m", ["m"], {"A": "1"}),
        ("docker run --entrypoint vllm i serve m -tp 2", ["m", "-tp", "2"], {}),
        ("docker run --rm -p8000:8000 any/image --model m", ["--model", "m"], {}),
    ],
)
def test_words_are_a_shells(text: str, arguments: list[str], environment: dict[str, str]) -> None:
    found = find_server([text])
    assert list(found.arguments) == arguments
    assert found.environment == environment


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("vllm serve 'm", "a quote is not closed"),
        ('vllm serve "m', "a quote is not closed"),
        ("vllm serve $(cat m)", "write the value itself"),
        ('vllm serve "`cat m`"', "write the value itself"),
        ("docker run -e A=1", "docker run names no image"),
        ("docker run --entrypoint bash vllm/vllm-openai -c 'vllm serve m'", "paste vllm serve"),
        ("docker run ubuntu sleep 1", "paste vllm serve"),
        ("ssh host 'vllm serve m'", "paste vllm serve"),
        ("services: {vllm: {image: vllm/vllm-openai}}", "paste vllm serve"),
        ("python -m sglang.launch_server --model m", "paste vllm serve"),
        ("", "paste vllm serve"),
        (f"A={'x' * 99}\nB={'$A' * 99}\nC={'$B' * 99}", "hold more than 65,536 characters"),
        ("vllm serve " + "m" * 224_000, "has 224,011 characters, more than 65,536"),
    ],
)
def test_what_is_no_command_is_refused_in_a_sentence(text: str, reason: str) -> None:
    with pytest.raises(PlanError, match=re.escape(reason)):
        find_server([text])


FULL = LONGEST - 64


@pytest.mark.parametrize(
    "text",
    [
        *(f"x {sign * FULL} x" for sign in ("'", '"', "\\", "$", "#", "\n", "<", "{", "é")),
        *(
            f"{SERVE} {rest}"
            for rest in (
                "9" * FULL,
                "a " * (FULL // 2),
                "$a" * (FULL // 2),
                "--x " * (FULL // 4),
                f"--{'a' * FULL}",
                f"-{'z' * FULL}",
                f"--a{'.a' * (FULL // 3)} 1",
                f"--max-model-len {'9' * 400}",
                f"--max-model-len {'9' * 400}k",
                f"--max-model-len {'9' * 5000}",
                f"--max-num-seqs {'9' * 400}",
                f"--tensor-parallel-size {'9' * 18}",
                f"-pp {'9' * 9}",
                f"--hf-overrides.num_hidden_layers {'9' * 400}",
                f"--hf-overrides '{{\"a\": {'9' * 5000}}}'",
                "--hf-overrides.hidden_size 1e999",
                "--hf-overrides '" + '{"a":' * 10_000 + "1" + "}" * 10_000 + "'",
                "--hf-overrides '" + '{"a":' * 40 + "1" + "}" * 40 + "'",
                "--hf-overrides '" + "[" * 30_000 + "'",
                f"--spec-method ngram --spec-tokens {'9' * 400}",
                '--speculative-config \'{"method": ["a"], "model": {"b": 1}}\'',
                "--gpu-memory-utilization 1e999 --speculative-config 1",
            )
        ),
        f"vllm serve {'m' * FULL}",
        f"HYBRID_BLOCKS={'a' * FULL} {SERVE}",
        "docker run " + "-e A=B " * (FULL // 7),
        "docker run vllm/vllm-openai",
    ],
    ids=lambda text: repr(text[:50]),
)
def test_wrong_words_of_any_length_end_in_one_short_sentence(text: str) -> None:
    for arguments in (["plan", "--memory", "24GiB", "--", text], ["doctor", "--", text]):
        assert len(refusal(*arguments)) < 1000


KEY = "hf_sesame"
READ = [
    f"HF_TOKEN={KEY} SERVE",
    f"HF_TOKEN={KEY}\nexport OTHER='open {KEY}'\nSERVE",
    f"SERVE --api-key {KEY}",
    f"SERVE --api-key open {KEY}",
    f"SERVE --api-key 'open {KEY}' --hf-token={KEY}",
    f'SERVE --kv-transfer-config \'{{"kv_connector": "X", "engine_id": "{KEY}"}}\'',
    f"SERVE --hf-overrides.comment {KEY}",
    f"docker run -e HF_TOKEN={KEY} --env 'KEY=open {KEY}' vllm/vllm-openai SERVE",
    f"vllm serve https://user:{KEY}@hub.example/Qwen/Qwen3.5-27B --max-model-len 8192",
    f"vllm serve 's3://models/Qwen3.5-27B?X-Amz-Signature={KEY}'",
    f"cat <<END\n{KEY}\nEND\nSERVE # {KEY}",
    f"[Service]\nEnvironment=HF_TOKEN={KEY}\nExecStart=/usr/bin/SERVE --api-key {KEY}",
]
REFUSED = [
    f"SERVE --api-kye {KEY}",
    f"SERVE --api-kye={KEY}",
    f"SERVE -z{KEY}",
    f"SERVE {KEY}",
    f"SERVE --enable-lora={KEY}",
    f"SERVE --api-key '{KEY}",
    f"SERVE --kv-transfer-config '{{\"a\": {KEY}}}'",
    f"SERVE --kv-transfer-config {KEY}",
    f'SERVE --diffusion-config \'{{"a": "{KEY}"}}\'',
    f"SERVE --hf-overrides {KEY}",
    f"SERVE --speculative-config {KEY}",
    f"SERVE --api-key {KEY} -dcp 2",
    f"HF_TOKEN={KEY} HYBRID_BLOCKS=full SERVE",
    f"HF_TOKEN={KEY} {KEY} vllm {KEY}",
    f"HF_TOKEN={KEY} $(vllm serve {KEY}",
]


@pytest.mark.parametrize("text", [*READ, *REFUSED])
def test_keys_appear_in_no_output(text: str, tmp_path: Path) -> None:
    files = [tmp_path / "page.html", tmp_path / "plan.json"]
    options = ["--memory", "40GiB", "--all", "--html", files[0], "--json", files[1]]
    command = text.replace("SERVE", SERVE)
    ran = run("plan", *options, "--", command)
    assert ran.code == (0 if text in READ else 2)
    assert all(file.exists() is (text in READ) for file in files)
    for output in (ran.output, *(file.read_text() for file in files if file.exists())):
        assert KEY not in output


@pytest.mark.parametrize("words", [["HF_TOKEN=hf_sesame", "vllm", "serv", "m"], ["m", "hf_sesame"]])
def test_words_that_are_no_command_are_not_repeated(words: list[str]) -> None:
    assert KEY not in refusal("plan", "--memory", "24GiB", *words)


def test_a_page_shows_what_was_understood_of_a_command() -> None:
    command = read_command(
        [
            "HYBRID_BLOCKS=natural A=b vllm serve Qwen3.5-27B -tp 2 --port 80 --max-model-len 32k "
            "--no-enable-prefix-caching --spec-method mtp --kv-offloading-size 4 --seed 1 "
            "--speculative-config '{\"num_speculative_tokens\": 2}'"
        ]
    )
    assert command.shown == (
        "HYBRID_BLOCKS=natural vllm serve Qwen3.5-27B --tensor-parallel-size 2 --max-model-len "
        "32000 --no-enable-prefix-caching --spec-method mtp --kv-offloading-size 4.0 "
        "--speculative-config '…'"
    )


def _fences() -> list[Any]:
    found = []
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for fence in re.findall(r"^```\w*\n(.*?)^```$", page.read_text(), re.M | re.S):
            lines = fence.splitlines()
            found += [
                pytest.param("\n".join(lines[index:]), id=f"{page.name}: {line[:60]}")
                for index, line in enumerate(lines)
                if re.search(r"\bvllm serve\b|\.api_server\b", line)
            ]
    return found


def test_documents_show_commands() -> None:
    assert len(_fences()) > 8


@pytest.mark.parametrize("text", _fences())
def test_each_command_of_the_documents_is_planned(text: str) -> None:
    text = re.sub(r"MODEL|build/small/\w+", "Qwen/Qwen3.5-27B", text)
    assert read_command([text]).model.num_layers
    assert read_features([text]).command.model.num_layers


NEVER = "from_the_file"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (f"{NEVER}: 1", "cannot be planned with the options of this file"),
        (f"port: {NEVER}", "cannot be planned with the options of this file"),
        (f"model: {NEVER}", "cannot be planned with the options of this file"),
        (f"root:x:0:0:{NEVER}", "holds no options"),
        (f"- {NEVER}", "holds no options"),
        (f"a: '{NEVER}\n\nb: [", "is not YAML that can be read (line 3)"),
        (f"a: !!int {NEVER}", "is not YAML that can be read"),
        (f"a: 2024-13-45\nb: {NEVER}", "is not YAML that can be read"),
        (f"a: {'9' * 5000}", "is not YAML that can be read"),
        ("a: " + "[" * 500 + "]" * 500, "is not YAML that can be read"),
        ("a: " + "[" * 60_000, "is not YAML that can be read"),
        ("a: " + "{b: " * 12_000, "is not YAML that can be read"),
        ("hf-overrides: {a: 2024-01-01}\nport: x", "cannot be planned"),
        ("a: &a [x, x]\n" + "".join(f"b{n}: [*a, *a]\n" for n in range(40)), "aliases"),
        (
            "a0: &a0 [x]\n"
            + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
            "aliases are not read",
        ),
        ("a: 1 # " + "x" * LARGEST, "is larger than 65,536 bytes"),
    ],
)
def test_a_wrong_file_of_options_is_not_repeated(content: str, reason: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "options.yaml"
    path.write_text(content)
    for read in (read_command, read_features):
        with pytest.raises(HybridBlocksError, match=re.escape(reason)) as raised:
            read(["vllm", "serve", "--config", str(path)])
        assert str(path) in str(raised.value)
        assert NEVER not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_an_error_of_the_command_is_named_beside_a_file(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "options.yaml"
    path.write_text("port: 80\n")
    with pytest.raises(PlanError, match="--decode-context-parallel-size 2"):
        read_command([f"{SERVE} --config {path} -dcp 2"])


@pytest.mark.parametrize("name", ["/dev/zero", "/no/such.yaml", ".", "a" * 5000, "a\0b", "pipe"])
def test_a_file_of_options_that_is_none_is_named(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("yaml")
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    for read in (read_command, read_features):
        with pytest.raises(PlanError, match=r"^--config "):
            read(["vllm", "serve", "Phi-4", "--config", name])
