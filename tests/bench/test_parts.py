"""Prompts, workloads, folders, the lender and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sglang_mlx_plugin.bench
from sglang_mlx_plugin.bench import contestants, folders, intree, machine, workloads
from sglang_mlx_plugin.bench.contestants import Setting
from sglang_mlx_plugin.bench.prompts import PromptMaker
from sglang_mlx_plugin.bench.types import BenchError
from sglang_mlx_plugin.cli import main

LENT = Path(sglang_mlx_plugin.bench.__file__).with_name("standalone") / "lent.py"


@pytest.mark.parametrize("tokens", [1, 12, 180, 2000])
def test_prompts_have_their_length_and_share_no_prefix(folder, tokens):
    prompts = PromptMaker(folder, "a seed")
    made = [prompts.prompt(tokens) for _ in range(3)]
    assert {len(prompts.encode(text)) for text in made} == {tokens}
    if tokens > 100:
        assert len({text[:40] for text in made}) == 3
    again = PromptMaker(folder, "a seed")
    assert [again.prompt(tokens) for _ in range(3)] == made


def test_special_tokens_that_a_server_writes_out_are_dropped(tmp_path, folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert PromptMaker(tmp_path).plain(" one<|end|> two") == " one two"


@pytest.mark.parametrize("workload", workloads.WORKLOADS, ids=lambda each: each.name)
def test_every_workload_makes_its_scenarios(folder, workload):
    prompts = PromptMaker(folder)
    for level in workload.levels:
        scenario = workload.make(prompts, min(level, 64))
        assert scenario.lanes and all(lane.calls for lane in scenario.lanes)
        # Someone must start, or nobody ever would.
        assert any(not lane.after_pieces for lane in scenario.lanes)
        texts = [call.text for lane in scenario.lanes for call in lane.calls]
        assert len(set(texts)) == len(texts)
    assert workload.needs <= next(iter(contestants.CONTESTANTS)).features
    several = [lane for lane in scenario.lanes if len(lane.calls) > 1]
    if several and len(scenario.lanes) > 1:
        # What the bare loop cannot do must be asked for.
        assert workload.needs


def test_choosing_by_name_and_letter():
    assert [each.name for each in workloads.choose("a,prefill")] == [
        *("decode", "decode-long", "prefill")
    ]
    assert workloads.choose("all") == workloads.WORKLOADS
    with pytest.raises(BenchError, match="no workload 'zz'; there are: decode"):
        workloads.choose("decode,zz")
    with pytest.raises(BenchError, match="no contestant 'nobody'; there are: ours"):
        contestants.choose("ours,nobody")


def test_without_end_names_an_unused_special_token(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    added = [
        {"id": index, "content": token, "special": special}
        for index, (token, special) in enumerate(
            [("<end>", True), ("<spare>", True), ("<user>", True), ("plain", False)]
        )
    ]
    (source / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    (source / "config.json").write_text(json.dumps({"eos_token_id": 0, "dtype": "float32"}))
    (source / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<end>", "chat_template": "<user>"})
    )
    (source / "weights").write_text("big")
    folders.make_same(source, tmp_path / "copy", "float32")
    copy = tmp_path / "copy"
    assert json.loads((copy / "config.json").read_text())["eos_token_id"] == 1
    assert json.loads((copy / "tokenizer_config.json").read_text())["eos_token"] == "<spare>"
    assert (copy / "weights").is_symlink()
    # The source is as it was.
    assert json.loads((source / "config.json").read_text())["eos_token_id"] == 0


def test_the_tiny_model_generates_all_it_is_asked_for(tmp_path):
    """In a process of its own, as the harness does it: mlx stays out of this one."""
    code = """
import sys
from pathlib import Path
from sglang_mlx_plugin.bench.bare import generate
from sglang_mlx_plugin.bench.folders import make_tiny
from mlx_lm.models import llama
import json, mlx.core as mx
folder = Path(sys.argv[1])
make_tiny(folder)
config = json.loads((folder / "config.json").read_text())
model = llama.Model(llama.ModelArgs.from_dict(config))
model.load_weights(str(folder / "model.safetensors"))
times, tokens, wall = generate(model, [[20, 30, 40], [50]], [40, 7])
assert [len(row) for row in tokens] == [len(row) for row in times] == [40, 7], tokens
assert times[0] == sorted(times[0]) and times[0][-1] <= wall
assert config["eos_token_id"] == 2 and not any(t < 3 for row in tokens for t in row)
"""
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "tiny")], check=True, timeout=120)


def test_lent_runs_a_module_as_python_m_would(tmp_path):
    (tmp_path / "victim.py").write_text("import sys; print(__name__, sys.argv[1:])")
    done = subprocess.run(
        [sys.executable, str(LENT), "-", "victim", "--port", "1"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "__main__ ['--port', '1']"


def test_in_tree_site_changes_only_its_own_processes(tmp_path, setting: Setting):
    site = intree.write_site(tmp_path / "site", None)
    compile((site / "sitecustomize.py").read_text(), "sitecustomize.py", "exec")
    env = intree.environment(site)
    assert env["SGLANG_USE_MLX"] == "1" and env["PYTHONPATH"] == str(site)
    for name in ("ours", "mlx_lm.server"):
        (contestant,) = contestants.choose(name)
        launch = contestant.launch(setting)
        assert "SGLANG_USE_MLX" not in contestants.environment(launch.env)
        assert str(site) not in contestants.environment(launch.env).get("PYTHONPATH", "")


def test_ours_is_the_standard_launch_and_nothing_else(setting: Setting):
    (ours,) = contestants.choose("ours")
    launch = ours.launch(setting)
    assert launch.argv == (
        *(sys.executable, "-m", "sglang.launch_server", "--model-path", str(setting.folder)),
        *("--host", "127.0.0.1", "--port", "{port}"),
    )
    assert not launch.env


def test_the_lent_blas_is_the_same_for_all(setting: Setting, tmp_path):
    lent = Setting(folder=setting.folder, work=tmp_path, kind="cpu", library=Path("/blas.so"))
    for name in ("mlx_lm.server", "vllm-mlx", "bare", "bare-layout"):
        (contestant,) = contestants.choose(name)
        assert "/blas.so" in contestant.launch(lent).argv
    (plain,) = contestants.choose("mlx_lm.server-as-installed")
    assert "/blas.so" not in plain.launch(lent).argv
    assert plain.why_not(setting) is not None


def test_machine_says_where_it_is():
    here = machine.machine()
    assert here["cpu"] and here["cores"] >= 1 and here["python"]
    assert "mlx-lm" in machine.versions()


def test_command_line(capsys, tmp_path):
    assert main(["bench", "--list"]) == 0
    assert "mlx_lm.server" in capsys.readouterr().out
    for words, said in (
        (["--levels", "0,x"], "--levels '0,x' must be whole numbers above 0"),
        (["--repeats", "0"], "smallest value is 1"),
        (["--workloads", "q"], "no workload 'q'"),
        (["--compare", str(tmp_path / "a"), str(tmp_path / "b")], "cannot be read"),
    ):
        assert main(["bench", *words]) == 1
        assert said in capsys.readouterr().err


def test_the_command_is_cheap_to_register():
    code = (
        "import sys; from sglang_mlx_plugin.cli import main\n"
        "try: main(['bench', '--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'mlx', 'torch', 'sglang', 'aiohttp', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_the_empty_plugin_is_a_vendor_of_nothing(tmp_path):
    """What its contestant puts on the path is listed as a vendor, and wins no hook."""
    setting = Setting(folder=tmp_path, work=tmp_path, kind="cpu", library=None)
    (empty,) = contestants.choose("ours-empty-plugin")
    launch = empty.launch(setting)
    assert launch.argv == contestants.choose("ours")[0].launch(setting).argv
    done = subprocess.run(
        [sys.executable, "-m", "sglang_mlx_plugin.cli", "hooks", "--json"],
        env={**contestants.environment(launch.env)},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert "sglang-mlx-empty" in {each["distribution"] for each in found["plugins"]}
    assert {each["winner"]["distribution"] for each in found["hooks"]} == {"sglang-mlx-plugin"}
