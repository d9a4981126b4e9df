"""The register of server arguments: complete, consistent, and acted upon."""

from __future__ import annotations

import importlib.util
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from sglang_mlx_plugin import entrypoints
from sglang_mlx_plugin.hooks.types import DeviceChoice
from sglang_mlx_plugin.host import arguments, releases
from sglang_mlx_plugin.host.arguments import ARGUMENTS, Honoured, Irrelevant, Refused
from sglang_mlx_plugin.host.errors import LaunchError

server_args = pytest.importorskip("sglang.srt.server_args")

# Fields of other supported releases than the newest.
ONLY_OLDER = {"cuda_graph_tc_compiler", "speculative_skip_dp_mlp_sync"}


def given(**values: Any) -> Any:
    return server_args.ServerArgs(model_path="model", **values)


def fields() -> dict[str, Any]:
    return releases.argument_defaults(given())


def test_every_field_of_the_installed_release_is_in_the_register() -> None:
    unknown = set(fields()) - set(ARGUMENTS)
    assert not unknown, f"decide what becomes of {sorted(unknown)} on MLX"


@pytest.mark.skipif(
    releases.installed_version() != releases.NEWEST, reason="fields of other releases"
)
def test_no_row_of_the_register_is_stale() -> None:
    assert set(ARGUMENTS) - set(fields()) == ONLY_OLDER


def test_no_field_stands_in_two_tables() -> None:
    tables = (arguments.HONOURED, arguments.IRRELEVANT, arguments.REFUSED)
    assert len(ARGUMENTS) == sum(map(len, tables))


def test_who_honours_a_field_exists() -> None:
    for name, rule in ARGUMENTS.items():
        if isinstance(rule, Honoured):
            assert importlib.util.find_spec(rule.by), f"{name} is honoured by {rule.by}"


def test_sentences_read_as_sentences() -> None:
    for name, rule in ARGUMENTS.items():
        words = {Irrelevant: "why", Refused: "why"}.get(type(rule))
        if words:
            text = getattr(rule, words)
            assert text and text == text.strip(), name
            assert not text.endswith((".", ";")), name
        if isinstance(rule, Refused):
            assert rule.instead and not rule.instead.endswith("."), name


def test_what_nobody_asked_for_passes() -> None:
    arguments.refuse_unsupported(given())


@pytest.mark.parametrize(
    "values",
    [
        {"tp_size": 1, "pp_size": 1, "dp_size": 2},
        {"page_size": 1, "kv_cache_dtype": "auto", "device": "cpu"},
        {"enable_lora": False, "lora_paths": []},
        {"attention_backend": "torch_native", "sampling_backend": "pytorch"},
        {"enable_mixed_chunk": True, "chunked_prefill_size": 128, "max_total_tokens": 1000},
        {"disable_cuda_graph": True, "disable_radix_cache": True, "grammar_backend": "llguidance"},
        {"enable_multimodal": False, "disaggregation_mode": "null"},
    ],
)
def test_what_mlx_can_honour_passes(values: dict[str, Any]) -> None:
    arguments.refuse_unsupported(given(**values))


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        ({"tp_size": 2}, "--tp-size 2: tensor parallelism"),
        ({"pp_size": 4}, "--pp-size 4: pipeline parallelism"),
        ({"nnodes": 2}, "--nnodes 2"),
        ({"speculative_algorithm": "EAGLE"}, "--speculative-algorithm EAGLE: speculative"),
        ({"disaggregation_mode": "prefill"}, "--disaggregation-mode prefill"),
        ({"enable_lora": True}, "--enable-lora: LoRA"),
        ({"lora_paths": ["a=/b"]}, "--lora-paths"),
        ({"quantization": "fp8"}, "--quantization fp8"),
        ({"enable_hierarchical_cache": True}, "--enable-hierarchical-cache: "),
        ({"cpu_offload_gb": 4}, "--cpu-offload-gb 4"),
        ({"enable_multimodal": True}, "--enable-multimodal: images"),
        ({"is_embedding": True}, "--is-embedding: embedding models"),
        ({"kv_cache_dtype": "fp8_e5m2"}, "--kv-cache-dtype fp8_e5m2"),
        ({"page_size": 16}, "--page-size 16"),
        ({"device": "cuda"}, "--device cuda"),
        ({"attention_backend": "flashinfer"}, "--attention-backend flashinfer"),
        ({"enable_torch_compile": True}, "--enable-torch-compile: "),
        ({"load_format": "gguf"}, "--load-format gguf"),
        ({"enable_dp_attention": True}, "--enable-dp-attention: "),
        ({"enable_custom_logit_processor": True}, "--enable-custom-logit-processor: "),
    ],
)
def test_what_mlx_cannot_honour_is_refused_by_name(values: dict[str, Any], flag: str) -> None:
    with pytest.raises(LaunchError) as caught:
        arguments.refuse_unsupported(given(**values))
    sentence = str(caught.value)
    assert sentence.startswith(flag)
    # What was asked, why it cannot be, what to do instead.
    assert "; " in sentence and sentence.endswith(".") and "\n" not in sentence


def test_what_cannot_matter_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    arguments.warn_irrelevant(given(cuda_graph_max_bs_decode=8, disable_cuda_graph=True))
    (record,) = caplog.records
    assert record.getMessage().startswith("--cuda-graph-max-bs-decode 8 has no effect on MLX")


@pytest.mark.parametrize(("kind", "chunk"), [("cpu", 512), ("metal", 2048)])
def test_defaults_suit_the_device(monkeypatch: pytest.MonkeyPatch, kind: Any, chunk: int) -> None:
    choice = DeviceChoice(active=True, kind=kind, reason="test")
    monkeypatch.setattr(entrypoints, "device_choice", lambda: choice)
    defaults = arguments.server_args_defaults(given())
    assert defaults["chunked_prefill_size"] == chunk
    assert defaults["attention_backend"] == "torch_native"
    assert set(defaults) <= set(fields())
    # Two replicas on one device share it.
    halved = arguments.server_args_defaults(given(dp_size=2))["mem_fraction_static"]
    assert halved == pytest.approx(defaults["mem_fraction_static"] / 2)


def test_what_the_user_set_stays() -> None:
    values = {"chunked_prefill_size": 512, "mem_fraction_static": 0.5, "disable_radix_cache": True}
    kept = arguments.left_at_default(given(chunked_prefill_size=64), values)
    assert kept == {"mem_fraction_static": 0.5, "disable_radix_cache": True}


def test_a_field_that_nobody_decided_on_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(releases, "argument_defaults", lambda record: {"brand_new": None})
    arguments.warn_irrelevant(SimpleNamespace(brand_new=1))
    assert "--brand-new is new to this plugin" in caplog.text
