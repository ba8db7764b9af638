"""The libraries whose attention is here, and the versions that it was tried with."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

__all__ = ["LIBRARIES", "Library"]


@dataclass(frozen=True)
class Library:
    """A distribution with attention in it.

    Args:
        name: of the distribution.
        tested: the version that its subjects were tried with.
        extra: of this distribution, that installs it; ``None`` for torch, which is there always.
    """

    name: str
    tested: str
    extra: str | None

    @property
    def installed(self) -> str | None:
        """The version that is installed, without a local part such as ``+cpu``."""
        try:
            return version(self.name).partition("+")[0]
        except PackageNotFoundError:
            return None

    @property
    def state(self) -> str:
        """One line: whether it is installed, and as which version."""
        if self.installed is None:
            return f"not installed: pip install 'attnbench-peers[{self.extra}]'"
        if self.installed != self.tested:
            return f"{self.installed}, but tested with {self.tested}"
        return self.installed


LIBRARIES = {
    library.name: library
    for library in (
        Library("bidirectional-cross-attention", "0.1.0", "bidirectional-cross-attention"),
        Library("complex-valued-transformer", "0.0.14", "complex-valued-transformer"),
        Library("compressive-transformer-pytorch", "0.4.0", "compressive-transformer-pytorch"),
        Library("conformer", "0.3.2", "conformer"),
        Library("curated-transformers", "2.0.1", "curated-transformers"),
        Library("diffusers", "0.42.1", "diffusers"),
        Library("espnet", "202511", "espnet"),
        Library("fair-esm", "2.0.0", "fair-esm"),
        Library("fast-transformer-pytorch", "0.0.4", "fast-transformer-pytorch"),
        Library("feedback-transformer-pytorch", "0.0.11", "feedback-transformer-pytorch"),
        Library("flash-pytorch", "0.1.9", "flash-pytorch"),
        Library("flax", "0.12.8", "jax"),
        Library("h-transformer-1d", "0.1.9", "h-transformer-1d"),
        Library("hourglass-transformer-pytorch", "0.0.6", "hourglass-transformer-pytorch"),
        Library("htm-pytorch", "0.0.4", "htm-pytorch"),
        Library("infini-transformer-pytorch", "0.2.1", "infini-transformer-pytorch"),
        Library("itransformer", "0.8.1", "itransformer"),
        Library("jax", "0.10.2", "jax"),
        Library("keras", "3.15.1", "keras"),
        Library("kornia", "0.9.0", "kornia"),
        Library("linear-attention-transformer", "0.19.1", "linear-attention-transformer"),
        Library("linmult", "1.8.1", "linmult"),
        Library("local-attention", "1.11.2", "local-attention"),
        Library("mega-pytorch", "0.1.0", "mega-pytorch"),
        Library("memorizing-transformers-pytorch", "0.4.1", "memorizing-transformers-pytorch"),
        Library(
            "memory-efficient-attention-pytorch", "0.1.6", "memory-efficient-attention-pytorch"
        ),
        Library("mixture-of-attention", "0.0.25", "mixture-of-attention"),
        Library("mlx", "0.32.4", "mlx"),
        Library("monai", "1.6.1", "monai"),
        Library("native-sparse-attention-pytorch", "0.2.3", "native-sparse-attention-pytorch"),
        Library("neuralforecast", "3.3.0", "neuralforecast"),
        Library("onnx", "1.23.2", "onnx"),
        Library("onnxruntime", "1.32.0", "onnx"),
        Library("optimum-quanto", "0.2.7", "transformers"),
        Library("performer-pytorch", "1.1.4", "performer-pytorch"),
        Library("pytorch-forecasting", "1.8.0", "pytorch-forecasting"),
        Library(
            "recurrent-memory-transformer-pytorch", "0.7.0", "recurrent-memory-transformer-pytorch"
        ),
        Library("ring-attention-pytorch", "0.5.20", "ring-attention-pytorch"),
        Library("routing-transformer", "1.6.1", "routing-transformer"),
        Library("sinkhorn-transformer", "0.11.4", "sinkhorn-transformer"),
        Library("speechbrain", "1.1.2", "speechbrain"),
        Library("torch", "2.13.0", None),
        Library("torch-geometric", "2.8.1", "torch-geometric"),
        Library("torchscale", "0.3.0", "torchscale"),
        Library("torchtune", "0.6.1", "torchtune"),
        Library("transformers", "5.24.0", "transformers"),
        Library("x-transformers", "2.31.10", "x-transformers"),
    )
}
