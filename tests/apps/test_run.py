"""octavo run: every cache format, determinism, UTF-8, sampling, Ctrl-C."""
import os
import re
import signal
import subprocess
import time

import pytest

NAMES = "auto bf16 f16 f32 fp8 fp8_e4m3 fp8_e5m2 fp8_e4m3fnuz fp8_per_token_head int8_per_token_head int8_rotated int8_v4".split()
PROMPT = "In the autumn of the year 211 the clerk counted"


@pytest.mark.parametrize("name", NAMES)
def test_every_cache_runs_and_repeats_itself(octavo, tiny, name):
    typed = ["run", "-m", tiny, "-p", PROMPT, "-n", "24", "--temp", "0", "--ignore-eos", "--kv-cache-dtype", name, "-v"]
    first, second = octavo(*typed), octavo(*typed)
    assert first.out == second.out and first.out.endswith("\n") and len(first.out) > 1
    assert "answer: 24 tokens" in first.err and f"prompt: {len(PROMPT)} tokens" in first.err


@pytest.mark.parametrize("more", [["-ctk", "f16", "-ctv", "e4m3"], ["-ctk", "i8+rot", "-ctv", "e5m2"], ["-ctk", "bf16"], ["--block-size", "1"], ["--block-size", "64"],
                                  ["--kv-layout", "hnd"], ["--kv-layout", "v5d"], ["--kv-cache-dtype", "fp8", "--k-scale", "0.02", "--v-scale", "0.01"],
                                  ["--pool-tokens", "512", "-c", "512"]], ids=" ".join)
def test_both_sides_pages_layouts_and_pools(octavo, tiny, more):
    assert octavo("run", "-m", tiny, "-p", PROMPT, "-n", "8", "--temp", "0", "--ignore-eos", *more).out


def test_pages_and_layouts_change_nothing(octavo, tiny):
    def text(*more):
        return octavo("run", "-m", tiny, "-p", PROMPT, "-n", "40", "--temp", "0", "--ignore-eos", "--kv-cache-dtype", "int8_rotated", *more).out

    assert text() == text("--block-size", "4") == text("--block-size", "64") == text("--kv-layout", "hnd") == text("--deny-variant", "attn_decode.scalar")


def test_windows(octavo, tiny_window):
    for name in NAMES:
        typed = ["run", "-m", tiny_window, "-p", PROMPT * 4, "-n", "80", "--temp", "0", "--ignore-eos", "--kv-cache-dtype", name]
        assert octavo(*typed).out == octavo(*typed).out


def test_what_is_streamed_is_utf8_whatever_bytes_the_model_says(octavo, tiny):
    # Random weights say random bytes: nearly every one is no character. Octavo.__call__ decodes strictly.
    spoken = [octavo("run", "-m", tiny, "-p", PROMPT, "-n", "200", "--temp", "5", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", seed, "--ignore-eos").out
              for seed in range(4)]
    assert all("\ufffd" in text for text in spoken)


def test_seeds(octavo, tiny):
    def text(seed):
        return octavo("run", "-m", tiny, "-p", PROMPT, "-n", "30", "--temp", "2", "--seed", seed, "--ignore-eos").out

    assert text(1) == text(1)
    assert len({text(seed) for seed in range(6)}) > 1


def test_chat_templates(octavo, tiny, tiny_chat):
    def prompt_tokens(model, *more):
        return int(re.search(r"prompt: (\d+) tokens", octavo("run", "-m", model, "-p", "hi", "-n", "1", "-v", *more).err).group(1))

    plain = prompt_tokens(tiny)
    assert plain == 2
    # <|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n: 3 control tokens and the bytes between
    chat = 3 + len("user\nhi") + len("\n") + len("assistant\n")
    assert prompt_tokens(tiny_chat) == chat and prompt_tokens(tiny_chat, "--chat") == chat
    assert prompt_tokens(tiny_chat, "--no-chat") == plain
    assert "template" in octavo("run", "-m", tiny, "-p", "hi", "--chat", check=1).err


def test_prompts_from_files(octavo, tiny, tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text(PROMPT)
    typed = ["run", "-m", tiny, "-n", "16", "--temp", "0", "--ignore-eos"]
    assert octavo(*typed, "-f", path).out == octavo(*typed, "-p", PROMPT).out
    path.write_bytes(b"")
    assert "prompt.txt" in octavo(*typed, "-f", path, check=1).err
    assert "absent.txt" in octavo(*typed, "-f", tmp_path / "absent.txt", check=1).err
    assert "empty" in octavo(*typed, "-p", "", check=1).err
    # Bytes that are no text are no reason to fall over.
    path.write_bytes(bytes(range(128, 192)))
    assert octavo(*typed, "-f", path).out


def test_the_answer_ends_with_the_context(octavo, tiny):
    result = octavo("run", "-m", tiny, "-p", "a" * 40, "-n", "400", "-c", "64", "--temp", "0", "--ignore-eos", "-v")
    # Prompt and answer fill the context; the last token needs no place in it.
    assert "answer: 25 tokens" in result.err


def test_kernels_can_be_forced_and_denied(octavo, tiny):
    typed = ["run", "-m", tiny, "-p", PROMPT, "-n", "8", "--temp", "0", "--ignore-eos", "-v"]
    assert "attn_decode.scalar" in octavo(*typed, "--force-variant", "attn_decode.scalar,attn_extend.scalar").err
    assert "attn_decode.avx2" not in octavo(*typed, "--deny-variant", "attn_decode.avx2").err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c(octavo, tiny_long, number):
    process = subprocess.Popen([octavo.path, "run", "-m", tiny_long, "-p", "a", "-n", "190000", "--ignore-eos", "-t", "1", "-v"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    first = os.read(process.stdout.fileno(), 1)
    process.send_signal(number)
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and time.monotonic() - begin < 20
    assert (first + out).decode("utf-8").endswith("\n")
    assert b"tokens/s" in err
