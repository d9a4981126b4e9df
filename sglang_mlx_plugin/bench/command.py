"""The command ``sglang-mlx bench``."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contestants import Setting
    from .record import Record
    from .workloads import Workload

__all__ = ["add_parser"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="time this server beside mlx_lm.server and others, in one run",
        description=(
            "Starts every contestant on the same model, dtype, BLAS and client, alternates "
            "them, and writes a JSON record, a Markdown table and an SVG plot."
        ),
    )
    parser.add_argument("--contestants", metavar="NAMES", help="comma-separated, or all")
    parser.add_argument("--workloads", metavar="NAMES", help="names or letters, or all")
    parser.add_argument("--levels", metavar="N,N", help="instead of each workload's own")
    parser.add_argument("--repeats", type=int, default=3, help="of every round (default: 3)")
    parser.add_argument("--model", type=Path, help="folder (default: the embedded model's)")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "as-is"),
        default="auto",
        help="of the copy that all are given (auto: float32 on a CPU, as it is elsewhere)",
    )
    parser.add_argument("--out", type=Path, help="the JSON file; .md and .svg go beside it")
    parser.add_argument(
        "--results", type=Path, default=Path(), help="folder of the JSON file without --out"
    )
    parser.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="end each contestant after its round, where memory does not hold all of them",
    )
    parser.add_argument("--ours-args", default="", help="more arguments of our launch")
    parser.add_argument(
        "--vllm-mlx-python", type=Path, metavar="PYTHON", help="environment that has vllm-mlx"
    )
    parser.add_argument("--keep", action="store_true", help="keep logs and the model's copy")
    parser.add_argument("--list", action="store_true", help="list contestants and workloads")
    parser.add_argument(
        "--report", type=Path, metavar="JSON", help="print a record's table and plot it again"
    )
    parser.add_argument(
        "--compare",
        type=Path,
        nargs=2,
        metavar=("BEFORE", "AFTER"),
        help="say which differences of two records are beyond the noise",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Bench, compare, list or report; the table goes to stdout, everything else to stderr."""
    from .types import BenchError

    try:
        if args.compare:
            return _compare(args)
        if args.report:
            return _report(args)
        return _bench(args)
    except BenchError as error:
        print(f"sglang-mlx bench: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("sglang-mlx bench: interrupted; what ran is in the record.", file=sys.stderr)
        return 130


def _say(line: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {line}", file=sys.stderr, flush=True)


def _compare(args: argparse.Namespace) -> int:
    from .compare import markdown
    from .record import Record

    before, after = (Record.read(path) for path in args.compare)
    print(markdown(before, after), end="")
    return 0


def _report(args: argparse.Namespace) -> int:
    from .record import Record

    _publish(Record.read(args.report), args.report)
    return 0


def _bench(args: argparse.Namespace) -> int:
    from . import contestants as entrants
    from . import machine, workloads
    from .record import Record
    from .runner import Plan, Runner
    from .types import BenchError

    chosen = workloads.choose(args.workloads or ",".join(workloads.DEFAULT_WORKLOADS))
    taking_part = entrants.choose(args.contestants or ",".join(entrants.DEFAULT_CONTESTANTS))
    if args.repeats < 1:
        raise BenchError(f"--repeats {args.repeats} measures nothing; the smallest value is 1.")
    levels = _levels(args.levels)
    if args.list:
        return _list()
    _need_aiohttp()
    # Ended by a signal, the harness still ends what it started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    out = args.out or args.results / time.strftime("bench-%Y-%m-%d-%H%M%S.json")
    work = Path(tempfile.mkdtemp(prefix="sglang-mlx-bench-"))
    failed = True
    try:
        settings, about = _prepare(args, work, chosen)
        record = Record(
            {
                "when": time.strftime("%Y-%m-%d %H:%M:%S %z"),
                "command": shlex.join(["sglang-mlx", "bench", *_arguments()]),
                "machine": machine.machine(),
                "versions": machine.versions(),
                "git": machine.commit(),
                "settings": about,
            }
        )
        plan = Plan(
            workloads=chosen,
            levels=levels,
            repeats=args.repeats,
            one_at_a_time=args.one_at_a_time,
            out=out,
        )
        Runner(plan, taking_part, settings, record, _say).run()
        failed = not record.rounds
    finally:
        _clean(work, keep=args.keep or failed)
    if failed:
        raise BenchError("no round was measured; the reasons are above.")
    _publish(record, out)
    print(out, file=sys.stderr)
    return 0


def _arguments() -> list[str]:
    """What was typed after ``bench``, for the record."""
    words = sys.argv[1:]
    return words[1:] if words[:1] == ["bench"] else words


def _levels(text: str | None) -> tuple[int, ...]:
    from .types import BenchError

    if not text:
        return ()
    words = text.split(",")
    if not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise BenchError(f"--levels {text!r} must be whole numbers above 0, such as 1,4,8.")
    return tuple(int(word) for word in words)


def _need_aiohttp() -> None:
    from importlib.util import find_spec

    from .types import BenchError

    if find_spec("aiohttp") is None:
        raise BenchError("The client needs aiohttp: pip install 'sglang-mlx-plugin[bench]'.")


def _list() -> int:
    from .contestants import CONTESTANTS
    from .workloads import WORKLOADS

    print("Contestants:")
    for each in CONTESTANTS:
        print(f"  {each.name:<28}{each.what}")
    print("Workloads:")
    for work in WORKLOADS:
        levels = ", ".join(map(str, work.levels))
        print(f"  {work.name:<12}({work.letter})  {work.what}; {work.level_means}: {levels}")
    return 0


def _prepare(
    args: argparse.Namespace, work: Path, chosen: tuple[Workload, ...]
) -> tuple[dict[str, Setting], dict[str, str]]:
    """The folders that the workloads need, and what all contestants share."""
    from dataclasses import replace

    from ..engine.device import choose_device
    from .contestants import Setting

    kind = choose_device(os.environ).kind
    library = _lendable_blas(kind)
    dtype = {"auto": "float32" if kind == "cpu" else None, "as-is": None}.get(args.dtype, "float32")
    base = Setting(
        folder=work,
        work=work,
        kind=kind,
        library=library,
        vllm_mlx_python=args.vllm_mlx_python,
        ours_args=tuple(shlex.split(args.ours_args)),
    )
    settings = {}
    source = args.model
    kinds = {each.model for each in chosen}
    if "model" in kinds:
        source = source or _default_model()
        _say(f"copying {source} ({dtype or 'as it is'}, without an end token)")
        words = ["same", str(source.resolve()), str(work / "model"), *([dtype] if dtype else [])]
        _make_folder(words, library, work)
        settings["model"] = replace(base, folder=work / "model")
    if "tiny" in kinds:
        _say("making the tiny model")
        _make_folder(["tiny", str(work / "tiny")], library, work)
        settings["tiny"] = replace(base, folder=work / "tiny")
    about = {
        "model": source.name if source else "the tiny model",
        "dtype": dtype or "as the folder holds it",
        "device": kind,
        "blas": library.name if library else "MLX's own",
    }
    return settings, about


def _lendable_blas(kind: str) -> Path | None:
    """The library that `engine.device.lend_blas` lends, found without loading it here."""
    from importlib.util import find_spec

    if sys.platform != "linux" or kind != "cpu":
        return None
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    library = Path(spec.origin).parent / "lib" / "libtorch_cpu.so"
    return library if library.exists() else None


def _default_model() -> Path:
    """Through the command, as a user gets it."""
    from .types import BenchError

    done = subprocess.run(
        [sys.executable, "-m", "sglang_mlx_plugin", "fetch-model"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise BenchError("The default model could not be made; name a folder with --model.")
    return Path(lines[-1])


def _make_folder(words: list[str], library: Path | None, work: Path) -> None:
    from .contestants import environment
    from .types import BenchError

    lent = Path(__file__).with_name("standalone") / "lent.py"
    argv = [sys.executable, str(lent), str(library or "-"), "sglang_mlx_plugin.bench.folders"]
    done = subprocess.run(
        [*argv, *words],
        env=environment({}),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        log = work / "folder.log"
        log.write_text(done.stderr, encoding="utf-8")
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        raise BenchError(f"The model's copy could not be made ({last}); see {log}.")


def _clean(work: Path, *, keep: bool) -> None:
    import shutil

    if keep:
        _say(f"logs and folders are in {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)


def _publish(record: Record, out: Path) -> None:
    from .plot import write_svg
    from .report import markdown
    from .types import BenchError

    text = markdown(record)
    out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text, end="")
    try:
        write_svg(record, out.with_suffix(".svg"))
    except BenchError as error:
        print(f"sglang-mlx bench: {error}", file=sys.stderr)
