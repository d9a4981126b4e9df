"""Launches every supported SGLang release and runs the same tests on each.

`make test-releases` runs this. Each release gets an environment of its own in
``.venv-releases/RELEASE``, kept from run to run. It sees what the environment of this Python
has (torch, MLX, this package) through a ``.pth`` file, and holds in front of that only SGLang
itself and the packages of which the release pins another version. So an environment costs a
wheel or a few, not gigabytes.

Usage: test_releases.py [RELEASE ...] [--only-prepare] [--no-contracts] [-- PYTEST_ARGS]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from sglang_mlx_plugin.host.releases import SUPPORTED

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venv-releases"
BASE = Path(sysconfig.get_path("purelib"))

# Older than the window: its launch must be refused.
OUTSIDE = "0.5.20"

# The base has builds of these without CUDA, which is why it need not have SGLang's version.
KEPT = ("torch", "torchvision", "torchaudio")


class PrepareError(RuntimeError):
    """An environment cannot be made; the text is for the user."""


# -- environments ------------------------------------------------------------------------


def prepare(release: str) -> Path:
    """The Python of the environment for `release`, made when it is not there.

    Raises:
        PrepareError: If a package cannot be installed.
    """
    folder = PLACE / release
    python = folder / "bin" / "python"
    done = folder / ".ready"
    wanted = _fingerprint()
    if done.is_file() and done.read_text() == wanted:
        return python
    venv.EnvBuilder(with_pip=False, symlinks=True, clear=True).create(folder)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    # Before the base can be seen, so that pip finds no other SGLang to make room for.
    _pip(python, "--no-deps", f"sglang=={release}")
    (site / "base.pth").write_text(f"import site; site.addsitedir({str(BASE)!r})\n")
    pins = differing_pins(site, _versions(BASE))
    if pins:
        print(f"  {release} pins other versions: {', '.join(pins)}", flush=True)
        constraints = folder / "constraints.txt"
        kept = [f"{name}=={_versions(BASE)[name]}" for name in KEPT if name in _versions(BASE)]
        constraints.write_text("\n".join(kept) + "\n")
        _pip(python, "--constraint", str(constraints), *pins)
    done.write_text(wanted)
    return python


def differing_pins(site: Path, base: Mapping[str, str]) -> list[str]:
    """What the SGLang in `site` requires in another version than the base has.

    Packages that the base does not have at all are SGLang's CUDA stack and what serving text
    never imports; they stay out here as they do there.

    Args:
        site: A folder of packages.
        base: Versions of the base's distributions by canonical name.
    """
    (sglang,) = metadata.distributions(name="sglang", path=[str(site)])
    found = []
    for text in sglang.requires or ():
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if name in KEPT or name not in base:
            continue
        if not requirement.specifier.contains(base[name], prereleases=True):
            found.append(f"{requirement.name}{requirement.specifier}")
    return found


def _versions(folder: Path) -> dict[str, str]:
    return {
        canonicalize_name(each.name): each.version
        for each in metadata.distributions(path=[str(folder)])
    }


def _fingerprint() -> str:
    """Changes when an environment has to be made anew: another Python, another base."""
    parts = [sys.version, str(BASE), *map(str, sorted(_versions(BASE).items()))]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def _pip(python: Path, *arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    answer = subprocess.run(
        [*command, "install", "--quiet", *arguments], capture_output=True, text=True, check=False
    )
    if answer.returncode:
        raise PrepareError(f"pip install {' '.join(arguments)} failed:\n{answer.stderr.strip()}")


# -- tests -------------------------------------------------------------------------------


def run_tests(
    python: Path, tests: str, arguments: Sequence[str], marker: str = "releases"
) -> dict[str, str]:
    """Run those of `tests` that bear `marker` with `python`.

    Each test's outcome by its name, in order.
    An empty answer means that pytest did not come to run a test.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        subprocess.run(
            [
                *(str(python), "-m", "pytest", "-m", marker, "-p", "no:cacheprovider"),
                *(tests, f"--junitxml={report}", *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "PATH": f"{python.parent}{os.pathsep}{os.environ.get('PATH', '')}"},
            check=False,
        )
        return read_report(report)


def read_report(report: Path) -> dict[str, str]:
    """Outcomes by test of a JUnit report; empty when there is none."""
    if not report.is_file():
        return {}
    outcomes: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        children = {child.tag for child in case}
        outcome = next(
            (
                word
                for tag, word in (("error", "error"), ("failure", "failed"), ("skipped", "skipped"))
                if tag in children
            ),
            "passed",
        )
        outcomes[case.get("name", "?").removeprefix("test_")] = outcome
    return outcomes


def table(results: Mapping[str, Mapping[str, str]]) -> str:
    """Tests by releases, as text.

    Args:
        results: For each release, the outcome of each test.
    """
    names = list(dict.fromkeys(name for outcomes in results.values() for name in outcomes))
    names = names or ["(no test was run)"]
    width = max(map(len, names))
    lines = [_line("", width, results)]
    for name in names:
        lines.append(_line(name, width, (results[each].get(name, "-") for each in results)))
    return "\n".join(lines)


def _line(name: str, width: int, cells: Iterable[str]) -> str:
    return f"{name:{width}}  " + "  ".join(f"{cell:8}" for cell in cells).rstrip()


def main(argv: Sequence[str] | None = None) -> int:
    """Prepare, test and report; 0 when every test of every release passed."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    extra: list[str] = []
    if "--" in arguments:
        cut = arguments.index("--")
        arguments, extra = arguments[:cut], arguments[cut + 1 :]
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help="default: all supported")
    parser.add_argument("--only-prepare", action="store_true", help="make the environments only")
    parser.add_argument("--no-contracts", action="store_true", help="no tests of the wheels")
    args = parser.parse_args(arguments)
    unknown = [each for each in args.releases if each not in SUPPORTED]
    if unknown:
        parser.error(f"{', '.join(unknown)} is not supported; supported: {', '.join(SUPPORTED)}")

    sound = True
    results: dict[str, dict[str, str]] = {}
    for release in args.releases or SUPPORTED:
        print(f"SGLang {release}", flush=True)
        try:
            python = prepare(release)
        except PrepareError as error:
            print(error, file=sys.stderr)
            results[release] = {}
            sound = False
            continue
        if not args.only_prepare:
            results[release] = run_tests(python, "tests/releases/test_smoke.py", extra)
    if args.only_prepare:
        return 0 if sound else 1
    if not args.releases:
        print(f"Outside the window: SGLang {OUTSIDE}, and one newer", flush=True)
        outside = "tests/releases/test_outside.py"
        try:
            for python in (prepare(OUTSIDE), Path(sys.executable)):
                outcomes = run_tests(python, outside, extra, "outside")
                good = [name for name, word in outcomes.items() if word == "passed"]
                bad = [name for name, word in outcomes.items() if word in ("failed", "error")]
                print(f"{len(good)} passed, {len(bad)} failed", flush=True)
                sound = sound and bool(good) and not bad
        except PrepareError as error:
            print(error, file=sys.stderr)
            sound = False
    if not args.no_contracts:
        print("Contracts, on the wheels", flush=True)
        outcomes = run_tests(Path(sys.executable), "tests/contracts/test_releases.py", extra)
        bad = {name: word for name, word in outcomes.items() if word != "passed"}
        print(f"\n{len(outcomes)} contract tests on the wheels, {len(bad)} not passed")
        sound = sound and bool(outcomes) and not bad
    print("\n" + table(results))
    passed = [outcomes and set(outcomes.values()) == {"passed"} for outcomes in results.values()]
    return 0 if sound and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
