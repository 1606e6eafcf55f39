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
