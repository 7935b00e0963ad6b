"""Builds the wheel and the source distribution, checks what is in them, and tries the wheel in an empty environment.

    make package

Two cores: one to two minutes, most of it the installation of torch. Needs the package index for the requirements.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

from heedful.kernels.few_rows_build import PROCESSORS, file_name

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "Makefile", "tests/conftest.py", "docs/index.md")
ALLOWED = {"src", "tests", "docs", "examples", "benchmarks", ".ci", ".github", ".gitignore", "PKG-INFO"}
ALLOWED |= {"pyproject.toml", "constraints.txt", "hatch_build.py", "Makefile", "Containerfile", ".readthedocs.yaml"}
ALLOWED |= {".pre-commit-config.yaml", "LICENSE", "CITATION.cff", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"}
ALLOWED |= {"SECURITY.md", "CODE_OF_CONDUCT.md"}


# without a compiler: the kernels that decode, and the OpenMP runtimes of the process, which must be one
DECODE = """
import re, torch, heedful
model = heedful.optimize(heedful.create("gpt-micro", seed=0))
model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=5)
print(model.kernels, *set(re.findall(r"\\S*lib[gi]?omp\\S*", open("/proc/self/maps").read())))
"""


def main() -> None:
    """Build, check and try both."""
    version = re.findall(
        r'^__version__ = "(.+)"$', (ROOT / "src/heedful/__init__.py").read_text("utf-8"), re.MULTILINE
    )[0]
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", str(ROOT / "dist"), str(ROOT), quiet=True)
    (wheel,), source = (ROOT / "dist").glob("*.whl"), ROOT / "dist" / f"heedful-{version}.tar.gz"
    check_wheel(wheel, version)
    check_readme(wheel, version)
    check_platform(wheel)
    check_source(source, version)
    with tempfile.TemporaryDirectory() as place:
        try_wheel(wheel, version, Path(place))
    print(f"{wheel.name} {wheel.stat().st_size:,} bytes, {source.name} {source.stat().st_size:,} bytes: both are whole")


def check_wheel(path: Path, version: str) -> None:
    """The package's modules and data, all of them and nothing else; licence and entry point."""
    names = set(zipfile.ZipFile(path).namelist())
    tree = ROOT / "src"
    files = {file for file in (tree / "heedful").rglob("*") if file.is_file() and "__pycache__" not in file.parts}
    beside = f"heedful-{version}.dist-info"
    wanted = {file.relative_to(tree).as_posix() for file in files}
    if not path.name.endswith("-py3-none-any.whl"):
        machine = path.stem.partition("_x86_64")[1].strip("_") or "aarch64"
        wanted |= {f"heedful/kernels/{file_name(machine, each)}" for each in PROCESSORS[machine]}
    wanted |= {f"{beside}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")}
    if names != wanted:
        sys.exit(f"{path.name} lacks {sorted(wanted - names)} and holds {sorted(names - wanted)} unasked")


def check_readme(path: Path, version: str) -> None:
    """The description is the readme, and its links and images have whole addresses, of files of this version."""
    metadata = zipfile.ZipFile(path).read(f"heedful-{version}.dist-info/METADATA").decode()
    text = metadata.partition("\n\n")[2]
    addresses = re.findall(r"\]\(([^)]+)\)", text)
    relative = re.findall(r"\]\((?![a-z]+:|#)([^)]+)\)", (ROOT / "README.md").read_text("utf-8"))
    inside = [address.partition(f"/v{version}/")[2] for address in addresses if f"/v{version}/" in address]
    wrong = [address for address in addresses if not re.match("https?://|#", address)]
    if not relative or wrong or sorted(inside) != sorted(relative):
        sys.exit(f"{path.name}: links of the readme are {wrong or inside}")


def check_platform(path: Path) -> None:
    """The compiled kernels run on every Linux system that the wheel's name promises."""
    if path.name.endswith("-py3-none-any.whl"):
        return
    told = run(sys.executable, "-m", "auditwheel", "show", str(path), quiet=True)
    named = path.stem.rpartition("-")[2]
    if f'"{named}"' not in " ".join(told.split()):
        sys.exit(f"{path.name} does not run everywhere on {named}:\n{told}")


def check_source(path: Path, version: str) -> None:
    """Tests, documentation and licence are there; nothing that is not the project's."""
    with tarfile.open(path) as archive:
        names = {name.removeprefix(f"heedful-{version}/") for name in archive.getnames()}
    lacking = [name for name in NEEDED if name not in names]
    strange = sorted({name.split("/")[0] for name in names} - ALLOWED)
    if lacking or strange:
        sys.exit(f"{path.name} lacks {lacking} and holds {strange} unasked")


def try_wheel(wheel: Path, version: str, place: Path) -> None:
    """Installed without the repository: its version, its help, a short run and an answer of what it trained."""
    venv.create(place / "env", with_pip=True)
    programs = place / "env" / ("Scripts" if os.name == "nt" else "bin")
    constraints = str(ROOT / "constraints.txt")
    pip = (str(programs / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, "--no-compile", "--constraint", constraints, str(wheel), cwd=place)  # few modules are imported
    heedful, names = str(programs / "heedful"), str(place / "names")
    if run(heedful, "--version", cwd=place).strip() != version:
        sys.exit("heedful --version is not the wheel's")
    run(heedful, "--help", cwd=place)
    run(heedful, "doctor", cwd=place)
    train = (heedful, "train", "text-classification", "--train", "builtin:cldr-languages", "--out", names)
    run(*train, "--preset", "bert-tiny", "--max-steps", "20", cwd=place)
    answer = run(heedful, "predict", names, "Sonntag", "--json", cwd=place)
    if '"output"' not in answer:
        sys.exit(f"heedful predict printed {answer!r}")
    told = run(str(programs / "python"), "-c", DECODE, cwd=place, CXX="no-compiler", HEEDFUL_CACHE=str(place))
    kernels, *runtimes = told.split()
    if kernels != ("cpu-inference" if wheel.name.endswith("-any.whl") else "cpu-compiled") or len(runtimes) != 1:
        sys.exit(f"without a compiler the kernels are {kernels}, with the OpenMP runtimes {runtimes}")


def run(*command: str, cwd: Path | None = None, quiet: bool = False, **variables: str) -> str:
    """Standard output of a command; where it fails, the end of all that it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | variables
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environment, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}")
    if not quiet:
        print("ok:", " ".join(Path(command[0]).name if word == command[0] else word for word in command), flush=True)
    return done.stdout


if __name__ == "__main__":
    main()
