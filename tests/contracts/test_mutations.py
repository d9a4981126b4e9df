"""Our real source against the installed release with one thing changed: each is named.

One check serves all changes of a side, since they do not touch one another.
"""

from __future__ import annotations

import pytest

from sglang_mlx_plugin.contracts.live import our_tree
from sglang_mlx_plugin.contracts.report import Report
from sglang_mlx_plugin.contracts.source import installed_tree
from sglang_mlx_plugin.contracts.static import check
from sglang_mlx_plugin.contracts.table import NOT_REACHED, TABLE
from tests.support.trees import EditedTree

SRT = "sglang/srt"
RESULT = "managers/utils.py"
SAMPLING = "sampling/sampling_batch_info.py"
RUNNER = "model_executor/model_runner.py"

UPSTREAM_EDITS = {
    f"{SRT}/{SAMPLING}": [
        ("    temperatures: torch.Tensor", "    temperature: torch.Tensor"),
        ("def update_regex_vocab_mask(self", "def update_vocab_masks(self"),
    ],
    f"{SRT}/constrained/base_grammar_backend.py": [
        (
            "    def apply(self, logits: torch.Tensor) -> None:",
            "    @property\n    def apply(self, logits: torch.Tensor) -> None:",
        ),
    ],
    f"{SRT}/utils/torch_memory_saver_adapter.py": [
        ("def create(enable: bool)", "def create(enable: bool, device)")
    ],
    f"{SRT}/{RUNNER}": [
        ("        self.mem_fraction_static = mem_fraction_static\n", ""),
        ("        self.lora_manager: Optional[LoRAManager] = None\n", ""),
        (
            "    @property\n    def logical_max_total_num_tokens(self)",
            "    def logical_max_total_num_tokens(self)",
        ),
        ("def load_model(self)", "def load_model(self, load_group)"),
    ],
    f"{SRT}/{RESULT}": [
        ("    delay_sample_func: Optional[callable]", "    sample_later: Optional[callable]")
    ],
    f"{SRT}/layers/logits_processor.py": [
        (
            "    next_token_logits: Optional[torch.Tensor]",
            "    token_logits: Optional[torch.Tensor]",
        )
    ],
    f"{SRT}/managers/tp_worker.py": [
        (
            "self.model_runner.init_attention_backends()",
            "self.model_runner.init_attention_backends(reuse=True)",
        )
    ],
    f"{SRT}/managers/scheduler.py": [
        ("    def init_tp_model_worker(self", "    def init_worker_of_target(self")
    ],
}

OUR_EDITS = {
    "sglang_mlx_plugin/host/runner.py": [
        ("def alloc_memory_pool(", "def allocate("),
        ("capture_decode_cuda_graph: bool = True", "capture: bool = True"),
    ],
    "sglang_mlx_plugin/host/launch.py": [
        ("def _init_tp_model_worker(scheduler: ", "def _init_tp_model_worker(rank, scheduler: ")
    ],
}


def _check(upstream, ours) -> Report:
    return check(upstream, ours, TABLE, not_reached=NOT_REACHED)


@pytest.fixture(scope="module")
def of_upstream() -> Report:
    return _check(EditedTree(installed_tree(), UPSTREAM_EDITS), our_tree())


@pytest.fixture(scope="module")
def of_ours() -> Report:
    return _check(installed_tree(), EditedTree(our_tree(), OUR_EDITS))


@pytest.mark.parametrize(
    ("target", "text"),
    [
        # A symbol renamed.
        (f"{SAMPLING}:SamplingBatchInfo.update_regex_vocab_mask", "it is not there"),
        ("managers/scheduler.py:Scheduler.init_tp_model_worker", "it is not there"),
        # A required parameter added, to what we call and to what we override.
        ("utils/torch_memory_saver_adapter.py:TorchMemorySaverAdapter.create", "'device'"),
        (f"{RUNNER}:ModelRunner.load_model", "'load_group'"),
        # An argument added to upstream's call of ours.
        (f"{RUNNER}:ModelRunner.init_attention_backends", "'reuse'"),
        # An attribute no longer set: one that we read, one that only the scheduler reads.
        (f"{RUNNER}:ModelRunner.mem_fraction_static", "it is not there"),
        (f"{RUNNER}:ModelRunner.lora_manager", "has no answer"),
        # A field renamed: one that we write, one that we construct with, one that we read.
        (f"{RESULT}:GenerationBatchResult.delay_sample_func", "it is not there"),
        ("layers/logits_processor.py:LogitsProcessorOutput", "'token_logits'"),
        (f"{SAMPLING}:SamplingBatchInfo.temperatures", "the nearest name there is temperature"),
        # A method turned into a property, and back.
        ("constrained/base_grammar_backend.py:GrammarMask.apply", "it is a property now"),
        (f"{RUNNER}:ModelRunner.logical_max_total_num_tokens", "upstream's is a method now"),
    ],
)
def test_a_change_of_upstream_is_named(of_upstream: Report, target: str, text: str) -> None:
    path, _, name = target.partition(":")
    dotted = f"sglang.srt.{path.removesuffix('.py').replace('/', '.')}.{name}"
    found = [p.sentence for p in of_upstream.problems if p.target == dotted]
    assert any(text in sentence for sentence in found), found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ModelRunner.alloc_memory_pool", "alloc_memory_pool, is not defined"),
        ("ModelRunner.init_cuda_graphs", "'capture_decode_cuda_graph'"),
        ("Scheduler.init_tp_model_worker", "_init_tp_model_worker"),
    ],
)
def test_a_change_of_ours_is_named(of_ours: Report, name: str, text: str) -> None:
    found = [p.sentence for p in of_ours.problems if p.target.endswith(name)]
    assert any(text in sentence for sentence in found), found


def test_a_sentence_says_what_a_user_would_see(of_upstream: Report) -> None:
    for problem in of_upstream.problems:
        assert not problem.sentence.endswith(".")
        if problem.target in {row.target for row in TABLE}:
            assert "; without it " in problem.sentence
