"""Build script: compiled decoding kernels for each kind of processor, and a readme that is whole on a package index."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

GLIBC = "manylinux_2_17"  # the oldest C library on which the compiled files run


class Kernels(BuildHookInterface):
    """Compiles ``few_rows.cpp`` for a wheel; without a compiler the wheel has none of them, and runs everywhere.

    ``HEEDFUL_WHEEL_MACHINE=aarch64`` with ``CXX=aarch64-linux-gnu-g++`` makes a wheel for another machine than this.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Adds the compiled files and the machine's name to the wheel."""
        if self.target_name != "wheel" or version == "editable":
            return
        kernels = Path(self.root, "src", "heedful", "kernels")
        found = importlib.util.spec_from_file_location("few_rows_build", kernels / "few_rows_build.py")
        assert found is not None
        assert found.loader is not None
        build = importlib.util.module_from_spec(found)
        found.loader.exec_module(build)
        machine = os.environ.get("HEEDFUL_WHEEL_MACHINE", platform.machine())
        command = build.compiler()
        if command is None or machine not in build.PROCESSORS:
            self.app.display_warning(f"no kernels are compiled into the wheel: no g++, or none for {machine}")
            return
        self.folder = tempfile.TemporaryDirectory()
        for processor in build.PROCESSORS[machine]:
            file = Path(self.folder.name, build.file_name(machine, processor))
            build.build(command, file, build.flags_of(processor))
            file.chmod(0o644)
            build_data["force_include"][str(file)] = f"heedful/kernels/{file.name}"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{GLIBC}_{machine}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes the compiled files, which are in the wheel now."""
        if hasattr(self, "folder"):
            self.folder.cleanup()


class Readme(MetadataHookInterface):
    """Gives links and images of README.md, which are relative, the address of the repository.

    They then open on the page of a package index. They are those of the version's tag.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Sets the readme of the package."""
        root = Path(self.root)
        init = (root / "src" / "heedful" / "__init__.py").read_text(encoding="utf-8")
        (version,) = re.findall(r'^__version__ = "(.+)"$', init, re.MULTILINE)
        text = (root / "README.md").read_text(encoding="utf-8")
        text = with_addresses(text, metadata["urls"]["Source"], f"v{version}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_addresses(text: str, repository: str, tag: str) -> str:
    """Returns Markdown whose links and images, relative before, are those of a tag of a GitHub repository."""
    raw = repository.replace("https://github.com/", "https://raw.githubusercontent.com/")
    text = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:)", rf"\g<1>{raw}/{tag}/", text)
    return re.sub(r"\]\((?![a-z]+:|#)", f"]({repository}/blob/{tag}/", text)  # links: all that are still relative
