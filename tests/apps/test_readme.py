"""The README's C example compiles without a warning and does what it says."""
import re
import subprocess


def test_the_example(root, request, tmp_path):
    with open(f"{root}/README.md", encoding="utf-8") as file:
        blocks = re.findall(r"^```c\n(.*?)^```$", file.read(), re.M | re.S)
    assert len(blocks) == 1
    source = tmp_path / "example.c"
    source.write_text(blocks[0])
    compiler = [word for word in request.config.getoption("--compiler").split("|") if word]
    subprocess.run([*compiler, "-std=c17", "-Wall", "-Wextra", "-Wpedantic", "-Werror", f"-I{root}/include", source, request.config.getoption("--library"), "-lm", "-pthread",
                    "-o", tmp_path / "example"], check=True)
    result = subprocess.run([tmp_path / "example"], capture_output=True, text=True, timeout=60, check=True)
    assert result.stderr == ""
    shown = re.search(r"^prints: `(.*)`", open(f"{root}/README.md", encoding="utf-8").read(), re.M)
    assert result.stdout.strip() == shown.group(1)


def test_the_quality_table_is_of_one_quick_evaluation(root):
    """Of all that --quick runs, nothing left out, in less than the three minutes that it may take on two cores; tools/check/docs.py holds README.md to the file."""
    page = open(f"{root}/doc/figures/eval.md", encoding="utf-8").read()
    command = re.search(r"^    (octavo eval .*)$", page, re.M).group(1).split()
    flags = [word for word in command[2:] if word.startswith("-")]
    assert flags == ["-m", "--quick", "--save", "--save", "--save"]
    threads, seconds = map(int, re.search(r", (\d+) threads;.* took (\d+) s\.", page).groups())
    assert threads == 2 and seconds < 180 and "octavo eval -m build/models/SmolLM2-135M-Instruct.Q4_1.gguf --quick" in open(f"{root}/README.md", encoding="utf-8").read()
