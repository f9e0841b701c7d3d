# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel (PEP 517), with the C library inside. Needs the standard library only.

``pip wheel ./python`` and ``make wheel`` use it. Two builds of one source are equal: entries are
sorted and dated by ``SOURCE_DATE_EPOCH``.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import struct
import time
import zipfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

try:
    import tomllib
except ImportError:  # before Python 3.11
    from pip._vendor import tomli as tomllib  # type: ignore[no-redef]

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
# shim/core/compat.h binds older symbols than the library needs; this glibc is the oldest that is supported.
OLDEST_GLIBC = 28
MACHINES = {62: "x86_64", 183: "aarch64"}  # e_machine


def version() -> str:
    """Returns the release, from the header that states it."""
    if os.environ.get("XSCHED_VERSION"):
        return os.environ["XSCHED_VERSION"]
    text = (ROOT / "shim/include/xsched/version.h").read_text()
    return ".".join(re.findall(r"^#define XS_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)$", text, re.M))


def platform_tag(library: bytes) -> str:
    """Returns the tag of the systems that can load a 64-bit ELF library."""
    if library[:6] != b"\x7fELF\x02\x01":
        raise ValueError("the library is no 64-bit ELF file")
    machine = MACHINES[struct.unpack_from("<H", library, 18)[0]]
    (table,) = struct.unpack_from("<Q", library, 40)
    size, count, names = struct.unpack_from("<HHH", library, 58)
    sections = [struct.unpack_from("<IIQQQQ", library, table + i * size) for i in range(count)]
    minors = [OLDEST_GLIBC]
    for name, _, _, _, offset, length in sections:
        start = sections[names][4] + name
        if library[start : start + 8] == b".dynstr\0":
            found = re.findall(rb"\0GLIBC_2\.(\d+)", library[offset : offset + length])
            minors += [int(minor) for minor in found]
    return f"manylinux_2_{max(minors)}_{machine}"


def metadata() -> Tuple[str, str]:
    """Returns the name of the distribution and its METADATA."""
    project = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {project['name']}",
        f"Version: {version()}",
        f"Summary: {project['description']}",
        f"License: {project['license']['text']}",
        f"Requires-Python: {project['requires-python']}",
        *(f"Classifier: {name}" for name in project["classifiers"]),
        "Description-Content-Type: text/markdown",
        "",
        (HERE / project["readme"]).read_text(),
    ]
    return project["name"], "\n".join(lines)


def write_wheel(folder: str, library: Optional[Path]) -> str:
    """Writes a wheel, with the library if there is one, and returns its file name."""
    name, text = metadata()
    stem = f"{name}-{version()}"
    files: Dict[str, bytes] = {}
    for path in (HERE / "xsched").iterdir():
        if path.suffix == ".py" or path.name == "py.typed":
            files[f"xsched/{path.name}"] = path.read_bytes()
    files["xsched_hip.py"] = (HERE / "xsched_hip.py").read_bytes()
    tag = "py3-none-any"
    if library is not None:
        content = library.read_bytes()
        files[f"xsched/lib/libxsched.so.{version().split('.')[0]}"] = content
        tag = f"py3-none-{platform_tag(content)}"
    info = f"{stem}.dist-info"
    files[f"{info}/METADATA"] = text.encode()
    files[f"{info}/WHEEL"] = (
        f"Wheel-Version: 1.0\nGenerator: xsched\nRoot-Is-Purelib: {'false' if library else 'true'}\nTag: {tag}\n"
    ).encode()
    files[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    files[f"{info}/RECORD"] = record(files, info).encode()

    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", "0")), 315532800)  # zip begins in 1980
    date = time.gmtime(epoch)[:6]
    wheel = f"{stem}-{tag}.whl"
    with zipfile.ZipFile(Path(folder) / wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(files):
            entry = zipfile.ZipInfo(path, date)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[path])
    return wheel


def record(files: Dict[str, bytes], info: str) -> str:
    rows: List[str] = []
    for path in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[path]).digest()).rstrip(b"=").decode()
        rows.append(f"{path},sha256={digest},{len(files[path])}\n")
    return "".join(rows) + f"{info}/RECORD,,\n"


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: Optional[str] = None) -> str:
    """Hook of PEP 517. Without a built library the wheel is pure Python."""
    library = Path(os.environ.get("XSCHED_WHEEL_LIBRARY", ROOT / "build/libxsched.so"))
    return write_wheel(wheel_directory, library if library.exists() else None)


def build_sdist(sdist_directory: str, config_settings: Any = None) -> str:
    """Hook of PEP 517, which requires it."""
    raise NotImplementedError("no source distribution: the sources are the repository; build a wheel")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a wheel with the library inside.")
    parser.add_argument("--library", type=Path, required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    os.makedirs(arguments.out, exist_ok=True)
    print(os.path.join(arguments.out, write_wheel(arguments.out, arguments.library)))
