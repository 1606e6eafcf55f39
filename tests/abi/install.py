"""Installs the build into an empty folder and builds a program against it as a user would: by the CMake package (shared and
static), and by pkg-config.

usage: install.py CMAKE BUILD_DIRECTORY CONSUMER_DIRECTORY C_COMPILER
"""
import glob
import os
import shutil
import subprocess
import sys
import tempfile


def run(*command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"failed: {' '.join(command)}\n{done.stdout}")
    return done.stdout


def main():
    cmake, build, consumer, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="octavo-install-") as work:
        prefix = os.path.join(work, "prefix")
        run(cmake, "--install", build, "--prefix", prefix)
        if glob.glob(os.path.join(prefix, "**", "*oct__*"), recursive=True):
            sys.exit("a private file was installed")

        # The folder moves: an installed copy must not know where it was made.
        moved = os.path.join(work, "moved")
        os.rename(prefix, moved)
        for target in ("octavo::octavo", "octavo::octavo_static"):
            binary = os.path.join(work, target.replace(":", "_"))
            run(cmake, "-S", consumer, "-B", binary, "-G", "Ninja", f"-DCMAKE_C_COMPILER={compiler}", f"-DCMAKE_PREFIX_PATH={moved}",
                f"-DCONSUMER_LINKS={target}")
            run(cmake, "--build", binary)
            print(target, run(os.path.join(binary, "consumer")).strip())

        if not shutil.which("pkg-config"):
            print("pkg-config is not there: that half was not run")
            sys.exit(77)
        package = glob.glob(os.path.join(moved, "**", "octavo.pc"), recursive=True)
        if len(package) != 1:
            sys.exit(f"expected one octavo.pc, found {package}")
        environment = dict(os.environ, PKG_CONFIG_PATH=os.path.dirname(package[0]))
        flags = run("pkg-config", "--cflags", "--libs", "octavo", env=environment).split()
        library = os.path.dirname(os.path.dirname(package[0]))
        program = os.path.join(work, "by_pkg_config")
        run(compiler, "-std=c17", os.path.join(consumer, "main.c"), "-o", program, *flags, f"-Wl,-rpath,{library}")
        print("pkg-config", run(program).strip())


main()
