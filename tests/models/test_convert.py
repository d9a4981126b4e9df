"""Folders from GGUF files: every weight as gguf's reference has it, loadable by both readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest

from sglang_mlx_plugin.models.convert import convert_gguf
from sglang_mlx_plugin.models.errors import ModelFileError
from sglang_mlx_plugin.models.gguf import GGML_TYPES, TensorInfo
from sglang_mlx_plugin.models.llama import unpermute
from sglang_mlx_plugin.models.packing import AFFINE_BITS, pack, unpack
from tests.models.tiny_gguf import LAYERS, permuted, random_weights, write_gguf

_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def module_of(name: str) -> str:
    parts = name.split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{_MODULES[parts[2]]}"
    return {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}.get(name, "lm_head")


def converted(source: Path, folder: Path) -> tuple[dict[str, Any], dict[str, mx.array]]:
    folder.mkdir()
    convert_gguf(source, folder)
    config = json.loads((folder / "config.json").read_text())
    return config, dict(mx.load(str(folder / "model.safetensors")))


def dequantised(config: dict[str, Any], arrays: dict[str, mx.array], module: str) -> np.ndarray:
    """As MLX itself unpacks a module's weights, with what config.json says of them."""
    weight = arrays[f"{module}.weight"]
    if f"{module}.scales" not in arrays:
        return np.array(weight.astype(mx.float32))
    settings = config["quantization"]
    settings = settings.get(module, settings)
    values = mx.dequantize(
        weight,
        arrays[f"{module}.scales"],
        arrays[f"{module}.biases"],
        group_size=settings["group_size"],
        bits=settings["bits"],
        mode=settings["mode"],
    )
    assert values.dtype == mx.float32
    return np.array(values)


@pytest.mark.parametrize("name", AFFINE_BITS)
def test_packed_blocks_equal_the_reference_bit_for_bit(name: str) -> None:
    random = np.random.default_rng(1)
    kind = next(each for each in GGML_TYPES.values() if each.name == name)
    blocks = random.integers(0, 256, (40, 3, kind.block_bytes), dtype=np.uint8)
    # Any bits as weights; scales of every size, subnormal ones and zero too, but finite.
    halves = random.integers(0, 0x7C00, (40, 3, 2)).astype("<u2")
    halves |= random.integers(0, 2, halves.shape).astype("<u2") << 15
    halves[0, 0] = 0
    blocks[:, :, : 4 if name == "Q4_1" else 2] = halves.view(np.uint8)[
        :, :, : 4 if name == "Q4_1" else 2
    ]
    rows = blocks.reshape(40, -1)
    packed = pack(rows, TensorInfo("t", kind, (40, 96), 0, rows.nbytes))
    want = gguf.dequantize(rows, gguf.GGMLQuantizationType[name])
    bits = AFFINE_BITS[name]
    np.testing.assert_array_equal(unpack(packed, bits), want)
    by_mlx = mx.dequantize(
        mx.array(packed.weight),
        mx.array(packed.scales),
        mx.array(packed.biases),
        group_size=32,
        bits=bits,
    )
    np.testing.assert_array_equal(np.array(by_mlx), want)


@pytest.mark.parametrize("name", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_every_weight_of_a_folder_is_exact(name: str, tmp_path: Path) -> None:
    reference = write_gguf(tmp_path / "tiny.gguf", name)
    config, arrays = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    for tensor, want in reference.items():
        got = dequantised(config, arrays, module_of(tensor))
        np.testing.assert_array_equal(got, want, err_msg=tensor)
    assert ("quantization" in config) == (name in AFFINE_BITS)


def test_mixed_types_get_settings_of_their_own(tmp_path: Path) -> None:
    types = {"token_embd": "Q8_0", "blk.0.ffn_down": "F16", "blk.1.attn_q": "BF16"}
    reference = write_gguf(tmp_path / "tiny.gguf", "Q4_1", types=types)
    config, arrays = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    settings = config["quantization"]
    assert (settings["bits"], settings["group_size"]) == (4, 32)
    assert settings["model.embed_tokens"]["bits"] == 8
    for tensor, want in reference.items():
        np.testing.assert_array_equal(dequantised(config, arrays, module_of(tensor)), want)


@pytest.mark.parametrize(
    ("name", "norm", "dtype"),
    [
        ("F32", 1.0, "float32"),
        ("F16", 1.0, "float16"),
        ("BF16", 1.0, "bfloat16"),
        ("F16", 1.0 + 2**-20, "float32"),
        ("BF16", 1.0 + 2**-10, "float32"),
        ("Q4_1", 1.0, "float32"),
    ],
)
def test_the_narrowest_dtype_that_loses_nothing(
    name: str, norm: float, dtype: str, tmp_path: Path
) -> None:
    weights = random_weights()
    weights["output_norm"][:] = norm
    reference = write_gguf(tmp_path / "tiny.gguf", name, weights=weights)
    config, arrays = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    assert config["dtype"] == dtype
    floats = [array for key, array in arrays.items() if array.dtype != mx.uint32]
    assert {str(array.dtype) for array in floats} == {f"mlx.core.{dtype}"}
    assert dequantised(config, arrays, "model.norm").tolist() == reference["output_norm"].tolist()


def test_unpermute_undoes_what_a_converter_does() -> None:
    rows = np.arange(6 * 8 * 5).reshape(48, 5)
    np.testing.assert_array_equal(unpermute(permuted(rows, 6), 6), rows)
    assert (permuted(rows, 6) != rows).any()


def test_an_own_output_matrix_is_not_tied(tmp_path: Path) -> None:
    weights = random_weights() | {"output": random_weights(1)["token_embd"]}
    reference = write_gguf(tmp_path / "tiny.gguf", "Q8_0", weights=weights)
    config, arrays = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    assert config["tie_word_embeddings"] is False
    np.testing.assert_array_equal(dequantised(config, arrays, "lm_head"), reference["output"])


@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"])
def test_mlx_lm_loads_it_and_computes_what_plain_weights_compute(name: str, tmp_path: Path) -> None:
    from mlx_lm.models.llama import Model, ModelArgs
    from mlx_lm.utils import load_model

    reference = write_gguf(tmp_path / "tiny.gguf", name)
    config, _ = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    model, _ = load_model(tmp_path / "folder")
    model.set_dtype(mx.float32)
    plain = Model(ModelArgs.from_dict(config))
    plain.load_weights(
        [(f"{module_of(key)}.weight", mx.array(value)) for key, value in reference.items()]
    )
    tokens = mx.array([[1, 70, 71, 72, 2]])
    np.testing.assert_allclose(np.array(model(tokens)), np.array(plain(tokens)), atol=1e-4)
    assert len(model.layers) == LAYERS


def test_the_config_is_what_the_file_says(tmp_path: Path) -> None:
    changes = {
        "tokenizer.ggml.eot_token_id": 0,
        "llama.rope.scaling.type": "linear",
        "llama.rope.scaling.factor": 2.0,
    }
    write_gguf(tmp_path / "tiny.gguf", changes=changes)
    config, _ = converted(tmp_path / "tiny.gguf", tmp_path / "folder")
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == 10000.0
    assert config["rope_scaling"]["factor"] == 2.0
    assert config["eos_token_id"] == [2, 0]
    generation = json.loads((tmp_path / "folder" / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 0], "pad_token_id": 2}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"general.architecture": "mamba"}, "'mamba', and only 'llama'"),
        ({"general.architecture": None}, "lacks the metadata key 'general.architecture'"),
        ({"general.architecture": 3}, "which must be a text"),
        ({"llama.block_count": 3}, "lacks the tensor 'blk.2.attn_norm.weight'"),
        ({"llama.block_count": 1}, "no llama model folder has a place for"),
        ({"llama.block_count": 2**31}, "a whole number from 1 to 1024"),
        ({"llama.feed_forward_length": 128}, "has the shape"),
        ({"llama.attention.head_count": 0}, "a whole number from 1"),
        ({"llama.attention.head_count": 3}, "do not go together"),
        ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, "a number from"),
        ({"llama.expert_count": 8}, "mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, "only 'linear' is known"),
        ({"llama.rope.dimension_count": 8}, "do not go together"),
        ({"tokenizer.ggml.eos_token_id": 5000}, "a whole number from 0 to"),
        ({"tokenizer.ggml.eos_token_id": None}, "lacks the metadata key"),
    ],
)
def test_what_cannot_be_expressed_is_refused_by_name(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "tiny.gguf", changes=changes)
    with pytest.raises(ModelFileError, match=words):
        converted(tmp_path / "tiny.gguf", tmp_path / "folder")


def test_llama_3_1_rotation_tables_are_refused(tmp_path: Path) -> None:
    weights = random_weights() | {"rope_freqs": np.ones(8, np.float32)}
    write_gguf(tmp_path / "tiny.gguf", weights=weights)
    with pytest.raises(ModelFileError, match="rope_freqs"):
        converted(tmp_path / "tiny.gguf", tmp_path / "folder")


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("tensor", ["output_norm", "blk.0.ffn_up"])
def test_weights_that_are_no_numbers_are_refused(tensor: str, value: float, tmp_path: Path) -> None:
    weights = random_weights()
    weights[tensor].flat[5] = value
    write_gguf(tmp_path / "tiny.gguf", "F16", weights=weights)
    with pytest.raises(ModelFileError, match="NaN or infinity"):
        converted(tmp_path / "tiny.gguf", tmp_path / "folder")
