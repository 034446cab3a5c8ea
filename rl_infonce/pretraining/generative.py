"""Objectives that paint pixels: a variational autoencoder, and the next frame."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rl_infonce.networks.architectures import STDIMEncoder
from rl_infonce.pretraining.base_objective import (
    Encoded,
    Encoder,
    FrameBatch,
    PretrainingLoss,
    PretrainingObjective,
    fresh,
    fresh_linear,
)


def screen_decoder(n_inputs: int, generator: torch.Generator) -> nn.Sequential:
    """Return features [B, n_inputs] -> gray screens [B, 1, 210, 160] in 0..1.

    Its layers are those of `STDIMEncoder` backwards, with transposed convolutions. They start as
    torch's do; the published transposed convolutions are orthogonal.
    """
    return fresh(
        lambda: nn.Sequential(
            nn.Linear(n_inputs, 64 * 9 * 6),
            nn.ReLU(),
            nn.Unflatten(1, (64, 9, 6)),
            nn.ConvTranspose2d(64, 128, kernel_size=3),
            nn.ReLU(),
            nn.ConvTranspose2d(128, 64, kernel_size=4, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 32, kernel_size=4, stride=2, output_padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, kernel_size=8, stride=4, output_padding=(2, 0)),
            nn.Sigmoid(),
        ),
        generator,
    )


def _of_screens(encoder: Encoder) -> STDIMEncoder:
    if not isinstance(encoder, STDIMEncoder):
        raise ValueError(
            f"Expected an STDIMEncoder to paint 210x160 screens, got {type(encoder).__name__}. "
            "Choose a contrastive objective for stacked frames."
        )
    return encoder


class VariationalAutoencoder(PretrainingObjective):
    """A VAE (Kingma and Welling 2014), with which Anand et al. 2019 compare.

    The encoder's features are the mean of the code; a second linear layer beside it gives the
    logarithm of the variance. The loss is the squared error summed over pixels plus the KL
    divergence from a unit normal, mean over the batch; the published code sums over the batch, and
    validates at the mean of the code, where this class draws codes.
    """

    contrasts = False
    frame_offsets = (0,)

    encoder: STDIMEncoder

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(_of_screens(encoder), generator)
        self.log_variance = fresh_linear(64 * 9 * 6, encoder.features_dim, generator)
        self.decoder = screen_decoder(encoder.features_dim, generator)

    def encode(self, images: Tensor) -> Encoded:
        """Return means and log-variances [B, D] of images [B, 1, 1, 210, 160]."""
        flat = self.encoder.head[:-1](self.encoder.local_features(images[:, 0]))
        return self.encoder.head[-1](flat), self.log_variance(flat)

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the negative evidence lower bound, up to constants, of pixels of variance 1/2."""
        means, log_variances = encoded
        codes = means + torch.exp(log_variances / 2) * batch.normal(means.shape[1])
        painted = self.decoder(codes).float()
        error = F.mse_loss(painted, batch.images[:, 0] / 255, reduction="sum")
        divergence = (means**2 + log_variances.exp() - 1 - log_variances).sum() / 2
        return PretrainingLoss((error + divergence) / len(means), means.new_full((), torch.nan))


class PixelPrediction(PretrainingObjective):
    """PIXEL-PRED (Anand et al. 2019): the next frame from the features, without the action.

    A linear layer and the VAE's decoder predict it; the loss is the mean squared error over pixels
    of 0..1.
    """

    contrasts = False

    def __init__(self, encoder: Encoder, generator: torch.Generator) -> None:
        super().__init__(_of_screens(encoder), generator)
        n_features = encoder.features_dim
        self.transition = fresh_linear(n_features, n_features, generator)
        self.decoder = screen_decoder(n_features, generator)

    def encode(self, images: Tensor) -> Encoded:
        """Return features [B, D] of the first of images [B, 2, 1, 210, 160]."""
        return (self.encoder(images[:, 0]),)

    def loss(self, encoded: Encoded, batch: FrameBatch) -> PretrainingLoss:
        """Return the mean squared error."""
        (features,) = encoded
        painted = self.decoder(self.transition(features)).float()
        loss = F.mse_loss(painted, batch.images[:, 1] / 255)
        return PretrainingLoss(loss, features.new_full((), torch.nan))
