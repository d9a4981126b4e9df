"""Tiny configurations, one or more for each of mlx-lm's model modules.

A recipe says only what a family needs beside `COMMON`: what its argument class does not know
of that is left out. Dimensions are multiples of 32, so that every recipe can be quantised in
groups of 32 and run by the Metal kernels; windows are 8 tokens, so that short prompts cross
their edge. Nothing here comes from a published model.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["COMMON", "RECIPES", "UNTESTED", "VOCAB", "WINDOW", "Recipe"]

VOCAB = 128
WINDOW = 8
HIDDEN = 64

FULL, SLIDING, LINEAR = "full_attention", "sliding_attention", "linear_attention"


@dataclass(frozen=True)
class Recipe:
    """How to build one tiny model.

    Attributes:
        module: Module under ``mlx_lm.models``.
        config: What ``config.json`` says beside `COMMON`; ``model_type`` is `module` unless
            given.
        kinds: The cache classes that `make_prompt_cache` gives, a `CacheList` written as
            ``CacheList(A, B)``, each once, in the order first seen.
        required: Whether the project's exactness matrix must cover it.
        gain: Standard deviation of a weight times the root of its fan-in; above 1, so that
            attention is sharp and what is generated keeps changing.
        embed: The same for embeddings; small, lest the last token outweighs its context.
        note: What is peculiar.
        metal: Whether mlx-lm runs it by Metal kernels only.
    """

    module: str
    config: dict[str, Any] = field(default_factory=dict)
    kinds: tuple[str, ...] = ("KVCache",)
    required: bool = False
    gain: float = 2.0
    embed: float = 0.5
    note: str = ""
    metal: bool = False


# What many argument classes ask for, in sizes that agree with each other.
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "layer_norm_eps": 1e-5,
    "layer_norm_epsilon": 1e-5,
    "norm_eps": 1e-5,
    "norm_epsilon": 1e-5,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "attention_bias": False,
    "mlp_bias": False,
    "use_bias": False,
    "bias": False,
    "tie_word_embeddings": False,
    # Mixtures of experts.
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    # Multi-head latent attention.
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    # Windows.
    "sliding_window": WINDOW,
    # Families that scale their activations.
    "embedding_multiplier": 1.0,
    "attention_multiplier": 0.25,
    "residual_multiplier": 1.0,
    "logits_scaling": 1.0,
    "partial_rotary_factor": 0.5,
}


def _text(module: str, **config: Any) -> dict[str, Any]:
    """The configuration of a text model inside a multimodal one."""
    return {"text_config": {**COMMON, "model_type": module, **config}}


_GDN = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4,
    "full_attention_interval": 2,
}
_MLA_MOE = {"num_key_value_heads": 4, "num_hidden_layers": 3}
_YARN = {
    "type": "yarn",
    "factor": 2.0,
    "original_max_position_embeddings": 256,
    "mscale": 0.7,
    "mscale_all_dim": 0.7,
    "beta_fast": 32,
    "beta_slow": 1,
}
_INDEXER = {**_MLA_MOE, "index_head_dim": 32, "index_n_heads": 2, "index_topk": 6}
_LONGCAT = {
    "attention_method": "MLA",
    "zero_expert_type": "identity",
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "zero_expert_num": 2,
    "num_layers": 2,
    "mla_scale_q_lora": True,
    "mla_scale_kv_lora": True,
}
_MAMBA2 = {
    "num_heads": 4,
    "head_dim": 32,
    "intermediate_size": 128,
    "state_size": 32,
    "conv_kernel": 4,
    "n_groups": 1,
    "use_conv_bias": True,
    "time_step_limit": [0.001, 100.0],
    "time_step_rank": "auto",
}
_LLAMA4_ROPE = {
    "rope_theta": 10000.0,
    "rope_type": "default",
    "llama_4_scaling_beta": 0.1,
    "original_max_position_embeddings": 16,
}
_LAYER_ROPES = {
    FULL: {"rope_theta": 10000.0, "rope_type": "default"},
    SLIDING: {"rope_theta": 1000.0, "rope_type": "default"},
}
_FALCON_H1 = {
    "mamba_d_conv": 4,
    "mamba_d_head": 32,
    "mamba_d_ssm": 128,
    "mamba_d_state": 32,
    "mamba_n_heads": 4,
    "mamba_n_groups": 1,
    "rope_theta": 10000.0,
}
_KDA = {"num_heads": 2, "head_dim": 32, "short_conv_kernel_size": 4, "kda_layers": [1, 2]}
_GPT = {"n_embd": HIDDEN, "n_layer": 2, "n_head": 4, "n_positions": 512}
_BAILING = {
    "num_hidden_layers": 4,
    "layer_group_size": 2,
    "group_norm_size": 2,
    "num_key_value_heads": 4,
    "first_k_dense_replace": 1,
}
_GEMMA4 = {
    "num_hidden_layers": 6,
    "global_head_dim": 32,
    "num_kv_shared_layers": 2,
    "hidden_size_per_layer_input": 32,
    "vocab_size_per_layer_input": VOCAB,
    "layer_types": [SLIDING, SLIDING, FULL] * 2,
    "tie_word_embeddings": True,
}
_MUSE = {
    "num_hidden_layers": 4,
    "post_norm_eps": 1e-6,
    "qk_scale_factor": 2.0,
    "rope_parameters": {"rope_theta": 10000.0},
    "layer_types": [SLIDING, SLIDING, SLIDING, FULL],
    "layer_rope_theta": [10000.0, 10000.0, 10000.0, 0],
    "output_multiplier": 1.0,
    "final_logit_softcapping": 20.0,
}

_ROTATING = ("RotatingKVCache", "KVCache")
_HYBRID = ("ArraysCache", "KVCache")
_PAIR = ("CacheList(KVCache, KVCache)",)

RECIPES: dict[str, Recipe] = {}


def _add(
    name: str,
    *,
    module: str | None = None,
    kinds: tuple[str, ...] = ("KVCache",),
    required: bool = False,
    gain: float = 2.0,
    embed: float = 0.5,
    note: str = "",
    metal: bool = False,
    **config: Any,
) -> None:
    RECIPES[name] = Recipe(module or name, config, kinds, required, gain, embed, note, metal)


# Full attention.
_add("llama", required=True)
_add("qwen2", required=True, tie_word_embeddings=True)
_add("qwen3", required=True)
_add("mistral3", required=True, **_text("llama"))
_add("phi3", required=True)
_add("glm4", required=True)
_add("granite", required=True, logits_scaling=2.0, residual_multiplier=0.8)
_add("starcoder2", required=True)
_add("nemotron", required=True, hidden_act="relu2")
_add("smollm3", required=True, num_hidden_layers=4, no_rope_layer_interval=2)
_add("gemma2", required=True)
_add("apertus", post_norm=False, qk_norm=True)
_add("bitnet", metal=True)
_add("cohere", logit_scale=1.0, use_qk_norm=True)
_add("ernie4_5")
_add("exaone", num_layers=2)
_add("gemma")
_add("glm")
_add("gpt2", n_ctx=512, **_GPT)
_add("gpt_bigcode", n_inner=96, **_GPT)
_add("gpt_neox", rotary_emb_base=10000, rotary_pct=0.5)
_add("gptj", rotary_dim=8, **_GPT)
_add("helium")
_add("hunyuan_v1_dense")
_add("internlm2")
_add("internlm3")
_add("lille-130m", block_size=512, n_kv_heads=2, n_embd=HIDDEN, n_layer=2, n_head=4)
_add("mimo")
_add("minicpm", dim_model_base=32, scale_depth=1.4, scale_emb=2.0)
_add("nanbeige", num_loops=2)
_add("nanochat", num_key_value_heads=4)
_add(
    "nemotron-nas",
    block_configs=[
        {"attention": {"n_heads_in_group": 2}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"replace_with_linear": True}, "ffn": {"ffn_mult": 1.5}},
        {"attention": {"n_heads_in_group": 4}, "ffn": {"no_op": True}},
    ],
    num_hidden_layers=3,
)
_add("olmo2")
_add(
    "openelm",
    num_transformer_layers=2,
    model_dim=HIDDEN,
    ffn_dim_divisor=32,
    num_query_heads=[4, 4],
    num_kv_heads=[2, 2],
    ffn_multipliers=[1.5, 2.0],
)
_add("phi")
_add("pixtral", **_text("llama"))
_add("plamo", n_shared_head=2)
_add("qwen", kv_channels=16)
_add("qwen2_vl", **_text("qwen2"))
_add("qwen3_vl", **_text("qwen3"))
_add("seed_oss")
_add("stablelm", use_qkv_bias=True)
_add("talkie")
_add("telechat3")

_add(
    "llama-dynamic",
    module="llama",
    rope_scaling={"type": "dynamic", "factor": 2.0},
    max_position_embeddings=16,
    note="rope's base grows with the length at which a token is seen",
)

# Mixtures of experts over full attention.
_add("mixtral", required=True)
_add("qwen3_moe", required=True)
_add("glm4_moe", required=True, use_qk_norm=True)
_add("dots1", required=True)
_add("ernie4_5_moe", required=True, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1)
_add("minimax", required=True, shared_intermediate_size=32, rotary_dim=8)
_add("Klear")
_add("bailing_moe", moe_router_enable_expert_bias=True, use_qk_norm=True)
_add(
    "dbrx",
    d_model=HIDDEN,
    n_layers=2,
    n_heads=4,
    attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    ffn_config={"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
)
_add("deepseek")
_add("granitemoe")
_add(
    "hunyuan",
    moe_topk=2,
    num_shared_expert=1,
    use_mixed_mlp_moe=True,
    use_qk_norm=True,
    use_cla=True,
    cla_share_factor=2,
    num_hidden_layers=4,
    rope_scaling={"type": "dynamic", "alpha": 100.0, "factor": 1.0},
)
_add("olmoe")
_add("phimoe")
_add("phixtral", num_vocab=VOCAB, model_dim=HIDDEN, num_heads=4, num_layers=2, rotary_dim=8)
_add("qwen2_moe")
_add("qwen3_vl_moe", **_text("qwen3_moe"))
_add("solar_open", use_qk_norm=True)

# Multi-head latent attention.
_add("deepseek_v2", required=True, topk_method="greedy", rope_scaling=_YARN, **_MLA_MOE)
_add("deepseek_v3", required=True, **_MLA_MOE)
_add("deepseek_v32", required=True, kinds=_PAIR, **_INDEXER)
_add(
    "minicpm3",
    required=True,
    dim_model_base=32,
    scale_depth=1.4,
    scale_emb=2.0,
    num_key_value_heads=4,
    rope_scaling={
        "type": "longrope",
        "short_factor": [1.0] * 8,
        "long_factor": [1.5] * 8,
        "original_max_position_embeddings": 256,
    },
)
_add("glm4_moe_lite", required=True, **_MLA_MOE)
_add("longcat_flash", required=True, kinds=_PAIR, **_LONGCAT)
_add(
    "glm_moe_dsa",
    kinds=_PAIR,
    rope_parameters={"rope_theta": 10000.0, "rope_type": "default"},
    **_INDEXER,
)
_add("kimi_k25", **_text("deepseek_v3", **_MLA_MOE))
_add("kimi_vl", **_text("deepseek_v3", **_MLA_MOE))
_add(
    "longcat_flash_ngram",
    kinds=("ArraysCache", *_PAIR),
    ngram_vocab_size_ratio=4,
    emb_neighbor_num=3,
    emb_split_num=2,
    **{k: v for k, v in _LONGCAT.items() if k != "attention_method"},
)
_add("mistral4", rope_parameters=_LLAMA4_ROPE, **_MLA_MOE)
_add("youtu_llm", **_MLA_MOE)

# Sliding windows.
_add(
    "gpt_oss", required=True, kinds=_ROTATING, num_hidden_layers=4, layer_types=[SLIDING, FULL] * 2
)
_add(
    "gemma3_text",
    required=True,
    kinds=_ROTATING,
    num_hidden_layers=4,
    sliding_window_pattern=2,
    query_pre_attn_scalar=16,
)
_add(
    "gemma3n",
    required=True,
    kinds=_ROTATING,
    **_text(
        "gemma3n",
        num_hidden_layers=6,
        intermediate_size=[96] * 6,
        num_kv_shared_layers=2,
        vocab_size_per_layer_input=VOCAB,
        rope_local_base_freq=1000.0,
        final_logit_softcapping=30.0,
        layer_types=[SLIDING, FULL] * 3,
        activation_sparsity_pattern=[0.5, *[0.0] * 5],
        hidden_size_per_layer_input=32,
        altup_num_inputs=2,
        altup_coef_clip=120.0,
        altup_correct_scale=True,
        altup_active_idx=0,
        laurel_rank=32,
    ),
)
_add("gemma4_text", required=True, kinds=_ROTATING, **_GEMMA4)
_add(
    "cohere2",
    required=True,
    kinds=_ROTATING,
    num_hidden_layers=4,
    sliding_window_pattern=2,
    logit_scale=1.0,
)
_add(
    "ministral3",
    required=True,
    kinds=_ROTATING,
    layer_types=[SLIDING, FULL],
    rope_parameters=_LLAMA4_ROPE,
)
_add("exaone4", required=True, kinds=_ROTATING, num_hidden_layers=4, sliding_window_pattern="LG")
_add("olmo3", required=True, kinds=_ROTATING, num_hidden_layers=4)
_add(
    "mimo_v2_flash",
    required=True,
    kinds=("KVCache", "RotatingKVCache"),
    hybrid_layer_pattern=[0, 1],
    moe_layer_freq=[0, 1],
    add_swa_attention_sink_bias=True,
    add_full_attention_sink_bias=False,
    sliding_window_size=WINDOW,
    layernorm_epsilon=1e-5,
    swa_rope_theta=1000.0,
    swa_num_attention_heads=4,
    swa_num_key_value_heads=2,
    swa_head_dim=16,
    swa_v_head_dim=16,
)
_add(
    "step3p5",
    required=True,
    kinds=("KVCache", "RotatingKVCache"),
    num_attention_groups=2,
    num_hidden_layers=4,
    layer_types=[FULL, SLIDING, SLIDING, FULL],
    moe_num_experts=4,
    moe_top_k=2,
    share_expert_dim=32,
)
_add(
    "llama-sliding",
    module="llama",
    kinds=_ROTATING,
    num_hidden_layers=4,
    layer_types=[SLIDING, FULL] * 2,
    note="llama with sliding layers",
)
_add(
    "afmoe",
    kinds=_ROTATING,
    num_hidden_layers=4,
    num_dense_layers=1,
    layer_types=[SLIDING, FULL] * 2,
)
_add(
    "exaone_moe",
    kinds=_ROTATING,
    num_hidden_layers=4,
    layer_types=[SLIDING, FULL] * 2,
    is_moe_layer=[False, True, True, True],
)
_add(
    "gemma3",
    kinds=_ROTATING,
    vocab_size=VOCAB,
    **_text("gemma3_text", num_hidden_layers=4, sliding_window_pattern=2, query_pre_attn_scalar=16),
)
_add("gemma4", kinds=_ROTATING, vocab_size=VOCAB, **_text("gemma4_text", **_GEMMA4))
_add("iquestloopcoder", kinds=("KVCache", "RotatingKVCache"), loop_num=2, loop_window_size=WINDOW)
_add(
    "laguna",
    kinds=_ROTATING,
    num_hidden_layers=4,
    layer_types=[SLIDING, FULL] * 2,
    rope_parameters=_LAYER_ROPES,
)
_add("mellum", kinds=_ROTATING, layer_types=[SLIDING, FULL], rope_parameters=_LAYER_ROPES)
_add("muse_glimmer", kinds=_ROTATING, **_MUSE)
_add(
    "muse_spark",
    metal=True,
    kinds=_ROTATING,
    **_text("muse_spark", moe_hidden_size=32, num_shared_experts=0, **_MUSE),
)
_add("plamo3", kinds=_ROTATING, num_hidden_layers=4, sliding_window_pattern=2)
_add("spark2_5", kinds=_ROTATING, num_hidden_layers=4, rope_parameters=_LAYER_ROPES)

# Chunked attention.
_add(
    "llama4",
    required=True,
    kinds=("ChunkedKVCache", "KVCache"),
    **_text(
        "llama4_text",
        num_hidden_layers=4,
        attention_chunk_size=WINDOW,
        num_experts_per_tok=1,
        interleave_moe_layer_step=2,
        intermediate_size_mlp=96,
        use_qk_norm=True,
        floor_scale=16,
    ),
)
_add(
    "llama4_text",
    required=True,
    intermediate_size_mlp=96,
    num_hidden_layers=4,
    no_rope_layers=[1, 1, 1, 0],
    use_qk_norm=True,
)

# Recurrent.
_add(
    "mamba",
    required=True,
    kinds=("ArraysCache",),
    intermediate_size=128,
    state_size=32,
    conv_kernel=4,
    use_conv_bias=True,
    time_step_rank=8,
)
_add("mamba2", required=True, kinds=("ArraysCache",), **_MAMBA2)
_add(
    "rwkv7",
    required=True,
    kinds=("ArraysCache",),
    head_dim=32,
    a_low_rank_dim=16,
    v_low_rank_dim=16,
    gate_low_rank_dim=16,
    decay_low_rank_dim=16,
)

# Hybrid.
_add("qwen3_next", required=True, kinds=_HYBRID, num_hidden_layers=4, **_GDN)
_add(
    "qwen3_5",
    required=True,
    kinds=_HYBRID,
    **_text(
        "qwen3_5",
        num_hidden_layers=4,
        num_experts=0,
        rope_parameters={
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
        **_GDN,
    ),
)
_add("falcon_h1", required=True, kinds=("CacheList(ArraysCache, KVCache)",), **_FALCON_H1)
_add(
    "granitemoehybrid",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    layer_types=["mamba", "attention"] * 2,
    shared_intermediate_size=32,
    mamba_n_heads=4,
    mamba_d_head=32,
    mamba_d_state=32,
    mamba_d_conv=4,
    mamba_n_groups=1,
    mamba_conv_bias=True,
    mamba_proj_bias=False,
)
_add(
    "jamba",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    attn_layer_offset=1,
    attn_layer_period=2,
    expert_layer_offset=1,
    expert_layer_period=2,
    mamba_d_conv=4,
    mamba_d_state=32,
    mamba_expand=2,
)
_add(
    "nemotron_h",
    required=True,
    kinds=_HYBRID,
    mamba_num_heads=4,
    mamba_head_dim=32,
    mamba_proj_bias=False,
    ssm_state_size=32,
    conv_kernel=4,
    n_groups=1,
    use_conv_bias=True,
    num_hidden_layers=5,
    hybrid_override_pattern=["M", "-", "*", "E", "M"],
    moe_shared_expert_intermediate_size=32,
    time_step_limit=[0.001, 100.0],
)
_add(
    "lfm2",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    conv_bias=False,
    conv_L_cache=3,
    block_dim=HIDDEN,
    block_multiple_of=32,
    block_ffn_dim_multiplier=1.0,
    block_auto_adjust_ff_dim=False,
    layer_types=["conv", FULL] * 2,
)
_add(
    "lfm2_moe",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    use_expert_bias=True,
    num_dense_layers=1,
    conv_bias=False,
    conv_L_cache=3,
    layer_types=["conv", FULL] * 2,
)
_add(
    "plamo2",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    hidden_size_per_head=16,
    mamba_d_state=32,
    mamba_num_heads=4,
    attention_window_size=512,
)
_add(
    "olmo_hybrid",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    layer_types=[LINEAR, FULL] * 2,
    linear_allow_neg_eigval=True,
    **{k: v for k, v in _GDN.items() if k.startswith("linear")},
)
_add("bailing_moe_linear", required=True, kinds=_HYBRID, **_BAILING)
_add(
    "kimi_linear",
    required=True,
    kinds=_HYBRID,
    num_hidden_layers=4,
    num_experts_per_token=2,
    linear_attn_config={**_KDA, "kda_layers": [1, 3]},
    model_max_length=512,
)
_add(
    "recurrent_gemma",
    required=True,
    kinds=("ArraysCache", "RotatingKVCache"),
    num_hidden_layers=3,
    conv1d_width=4,
    logits_soft_cap=30.0,
    attention_window_size=WINDOW,
    num_key_value_heads=1,
    block_types=["recurrent", "recurrent", "attention"],
)
_add("afm7", hidden_dim=HIDDEN, num_layers=4, num_kv_reuse_layers=2, num_heads=4, num_kv_heads=2)
_add(
    "baichuan_m1",
    kinds=("CacheList(ArraysCache, KVCache)", "CacheList(ArraysCache, RotatingKVCache)"),
    sliding_window_layers=[1],
    conv_window=2,
)
_add("bailing_hybrid", kinds=_HYBRID, **_BAILING)
_add(
    "bailing_moe_v3",
    kinds=_HYBRID,
    num_hidden_layers=4,
    layer_group_size=2,
    head_dim=32,
    moe_shared_expert_intermediate_size=32,
)
_add(
    "gear",
    kinds=("ArraysCache", "RotatingKVCache", "KVCache"),
    num_hidden_layers=3,
    layer_types=["conv_mixer", SLIDING, FULL],
)
_add(
    "kimi_k3",
    kinds=_HYBRID,
    **_text(
        "kimi_linear",
        num_hidden_layers=4,
        num_experts_per_token=2,
        linear_attn_config={**_KDA, "kda_layers": [1, 3]},
    ),
)
_add(
    "lfm2-vl",
    kinds=_HYBRID,
    **_text(
        "lfm2",
        num_hidden_layers=4,
        conv_bias=False,
        conv_L_cache=3,
        block_dim=HIDDEN,
        block_multiple_of=32,
        block_ffn_dim_multiplier=1.0,
        block_auto_adjust_ff_dim=False,
        layer_types=["conv", FULL] * 2,
    ),
)
_add(
    "qwen3_5_moe",
    kinds=_HYBRID,
    **_text(
        "qwen3_5_moe",
        num_hidden_layers=4,
        rope_parameters={
            "type": "default",
            "rope_theta": 10000.0,
            "partial_rotary_factor": 0.5,
            "mrope_section": [2, 1, 1],
        },
        **_GDN,
    ),
)

# Sparse attention with an index over the cached keys.
_add(
    "minimax_m3_vl",
    kinds=("CacheList(KVCache)", "CacheList(KVCache, KVCache)"),
    **_text(
        "minimax_m3",
        num_hidden_layers=3,
        dense_intermediate_size=96,
        intermediate_size=32,
        shared_intermediate_size=32,
        mlp_layer_types=["dense", "sparse", "sparse"],
        layer_types=[FULL, "sparse", "sparse"],
        index_n_heads=2,
        index_head_dim=16,
        index_block_size=4,
        index_topk_blocks=2,
    ),
)
_add(
    "deepseek_v41",
    kinds=("LayerCache",),
    num_hidden_layers=3,
    head_dim=32,
    o_groups=2,
    o_lora_rank=32,
    compress_ratios=[0, 4, 8],
    kv_source_layer_ids=[0, 1, 2],
    index_source_layer_ids=[0, 1, 2],
    index_n_heads=2,
    index_head_dim=32,
    index_topk=4,
    hc_mult=2,
    hc_sinkhorn_iters=4,
)

# Modules of mlx_lm.models that are models but have no recipe, and why.
UNTESTED: dict[str, str] = {
    "phi3small": "mlx-lm adds its boolean mask to the scores, so that its block-sparse layers "
    "see later tokens; and it writes out of bounds for a vocabulary below 100,352",
    "olmo": "ends the interpreter (SystemExit) when imported without ai2-olmo",
    "prism_hadamard_qwen35": "packed 2-bit weights only; qwen3_5 under them",
}
