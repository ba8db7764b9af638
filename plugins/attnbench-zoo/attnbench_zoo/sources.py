"""Where a mutant comes from: a public thread, a review, or this project."""

from __future__ import annotations

__all__ = ["OWN", "REVIEW", "link", "origin"]

OWN, REVIEW = "own", "seen in review"

_OWNERS = """
    AI-Hypercomputer/maxtext Blaizzy/mlx-vlm Dao-AILab/flash-attention EfficientMoE/MoE-Infinity
    MemTensor/MemOS NVIDIA-NeMo/Megatron-Bridge NVIDIA/TransformerEngine NVIDIA/apex
    NVIDIA/cudnn-frontend NVIDIA/cutlass OpenNMT/OpenNMT-py PetrochukM/PyTorch-NLP
    TransformerLensOrg/TransformerLens allenai/OLMo-core allenai/allennlp apple/axlearn
    awslabs/keys_values axolotl-ai-cloud/axolotl d2l-ai/d2l-en deepspeedai/DeepSpeed
    facebookresearch/ParlAI facebookresearch/fairseq facebookresearch/fairseq2
    facebookresearch/xformers fastnlp/fastNLP fla-org/flash-linear-attention
    flashinfer-ai/flashinfer ggml-org/llama.cpp google/flax goombalab/hnet huggingface/candle
    huggingface/diffusers huggingface/nanoVLM huggingface/pytorch-image-models
    huggingface/transformers inclusionAI/AReaL jadore801120/attention-is-all-you-need-pytorch
    karpathy/nanochat karpathy/ng-video-lecture keras-team/keras keras-team/keras-hub
    kimiyoung/transformer-xl lucidrains/flamingo-pytorch lucidrains/halonet-pytorch
    lucidrains/rotary-embedding-torch lucidrains/x-transformers meta-pytorch/attention-gym
    microsoft/onnxruntime ml-explore/mlx-examples ml-explore/mlx-lm mlc-ai/mlc-llm modular/modular
    oarriaga/paz onnx/onnx openai/guided-diffusion pytorch/executorch pytorch/pytorch
    rajveer43/VeloxQuant-MLX rasbt/LLMs-from-scratch sgl-project/sglang skyzh/tiny-llm
    tensorflow/addons tenstorrent/tt-metal thinking-machines-lab/batch_invariant_ops
    time-series-foundation-models/lag-llama unslothai/unsloth vllm-project/vllm
    vllm-project/vllm-ascend vllm-project/vllm-metal
"""
"""Repositories that are named without their owner; of the others, the thread's name is all that is
known."""

_REPOSITORIES = {name.partition("/")[2]: name for name in _OWNERS.split()}
_REPOSITORIES["timm"] = "huggingface/pytorch-image-models"


def origin(bugs: tuple[str, ...]) -> str:
    """``"public thread"``, ``"seen in review"`` or ``"own"``: what a mutant repeats."""
    return bugs[0] if bugs[0] in (OWN, REVIEW) else "public thread"


def link(bug: str) -> str | None:
    """The address of ``project#number`` on GitHub; ``None`` if its owner is not known."""
    project, _, number = bug.partition("#")
    repository = project if "/" in project else _REPOSITORIES.get(project)
    if not number or repository is None:
        return None
    return f"https://github.com/{repository}/issues/{number}"  # leads to a pull request as well
