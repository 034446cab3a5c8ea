"""InfoNCECallback: binds by name, schedules the coefficient, or trains the encoder on its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback, EventCallback
from stable_baselines3.common.utils import FloatSchedule, LinearSchedule
from torch import nn

from rl_infonce.checks import check_count, check_flag, check_number
from rl_infonce.hyperparameters import schedule_start
from rl_infonce.sb3.auxiliary_loss import trained
from rl_infonce.sb3.binding import is_of_target_network, unfit_for_attaching
from rl_infonce.sb3.experience import Experience
from rl_infonce.sb3.extractor import InfoNCEExtractor
from rl_infonce.sb3.own_adam import OwnAdam

Schedule = Callable[[float], float]


def trained_extractors(policy: nn.Module) -> list[InfoNCEExtractor]:
    """Return the policy's extractors, each once, without those of its target networks."""
    return [
        module
        for name, module in policy.named_modules()
        if isinstance(module, InfoNCEExtractor) and not is_of_target_network(name)
    ]


def make_updates_due(model: BaseAlgorithm) -> None:
    """Let isolated encoders have the updates now that would come with the next `learn`.

    Call it before `model.save`, which leaves out the rollout or the replay buffer that they read.
    `InfoNCECallback` does so when `learn` ends.
    """
    for extractor in trained_extractors(model.policy):
        extractor.make_updates_due()


class InfoNCECallback(BaseCallback):
    """Bind the extractors of a model explicitly, and steer their loss.

    Not needed for the loss itself: an `InfoNCEExtractor` finds its algorithm. Use it to change the
    coefficient while training, to be told at once if nothing would be trained, or for the
    decoupled mode: the loss then leaves the RL backward alone and trains encoder and heads with an
    Adam of its own after the RL epochs (Stooke et al. 2021, "decoupled" except that the RL loss
    also trains the encoder). The decoupled mode also serves TRPO.

    May be passed to `learn()` again; Adam's moments continue.

    Args:
        infonce_coef: Weight of the loss: a number, a function of the remaining progress (1 to 0)
            at each update, as SB3's learning rate, or "lin_0.1" for a line from 0.1 to 0. None
            keeps the extractor's own, which also returns when `learn()` ends. Adam cancels a
            constant factor: in decoupled mode and for isolated encoders, the share of the
            schedule's largest value, at eleven points, multiplies the learning rate. In decoupled
            mode that value multiplies the gradient, whose norm is then clipped at 10.
        decoupled: Whether to train the encoder in updates of its own.
        learning_rate: Learning rate of the decoupled Adam where the schedule is largest, > 0; None
            means 0.001.
        n_updates: Decoupled updates after each `train()`, >= 1; None means 16 on-policy and 1
            off-policy.
        verbose: 1 prints which extractors are bound.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If an argument is out of range or, when training begins, if the model has no
            `InfoNCEExtractor`, its algorithm cannot carry the loss or the callback is inside an
            `EventCallback`.
    """

    def __init__(
        self,
        infonce_coef: float | str | Schedule | None = None,
        *,
        decoupled: bool = False,
        learning_rate: float | None = None,
        n_updates: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        check_flag("decoupled", decoupled)
        given = {"learning_rate": learning_rate, "n_updates": n_updates}
        learning_rate = 1e-3 if learning_rate is None else learning_rate
        check_number("learning_rate", learning_rate, above=0)
        if n_updates is not None:
            check_count("n_updates", n_updates)
        _check_decoupled(decoupled, given)
        self.coef_schedule = _schedule(infonce_coef)
        self.decoupled = decoupled
        self.learning_rate = learning_rate
        self.n_updates = n_updates
        self.extractors: list[InfoNCEExtractor] = []
        self._optimizers: dict[int, tuple[list[nn.Parameter], OwnAdam]] = {}
        self._recorded: dict[int, Experience] = {}

    def _init_callback(self) -> None:
        self.extractors = trained_extractors(self.model.policy)
        if not self.extractors:
            raise ValueError(
                "Expected `model` to have an InfoNCEExtractor, got "
                f"{type(self.model.policy).__name__} without one. Build it with "
                'policy_kwargs={"features_extractor_class": InfoNCEExtractor}.'
            )
        self._check_algorithm()
        self._check_schedule()
        self._recorded = {}  # of a learn() that was interrupted
        for extractor in self.extractors:
            if self.decoupled:
                _check_heeded(vars(extractor.settings))
                check_not_isolated(extractor)
            extractor.bind(self.model)
            extractor.steer(decoupled=self.decoupled)
        if self.verbose:
            print(f"InfoNCECallback: {len(self.extractors)} extractor(s) bound")  # noqa: T201

    def _check_algorithm(self) -> None:
        reason = unfit_for_attaching(self.model)
        attaches = not self.decoupled and not all(
            each.settings.isolated for each in self.extractors
        )
        if reason is not None and attaches:
            raise ValueError(f"Expected an algorithm that can carry the InfoNCE loss: {reason}.")

    def _check_schedule(self) -> None:
        """Raise if nothing would ever train an encoder that RL does not train."""
        if self.coef_schedule is None or not any(each.is_isolated for each in self.extractors):
            return
        if not any(_at_tenths(self.coef_schedule)):
            raise ValueError(
                "Expected a schedule of `infonce_coef` above 0 with an isolated encoder, which RL "
                "does not train, got 0. Pass infonce_coef=0 in features_extractor_kwargs: then RL "
                "trains it."
            )

    def _on_training_start(self) -> None:
        if isinstance(self.parent, EventCallback):  # which tells nothing of rollouts
            raise ValueError(
                "Expected InfoNCECallback to hear of every rollout, got it inside "
                f"{type(self.parent).__name__}. Pass both to `learn` in one list."
            )

    def _on_rollout_start(self) -> None:
        self._update_decoupled()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        if self.coef_schedule is not None:
            # SB3 updates its own progress after this call, and past the end to less than 0.
            remaining = 1.0 - self.num_timesteps / self.model._total_timesteps
            coef = self.coef_schedule(max(remaining, 0.0))
            for extractor in self.extractors:
                share = self._share_of_largest(coef) if extractor.settings.isolated else 1.0
                extractor.steer(decoupled=self.decoupled, infonce_coef=coef, share=share)
        if not self.decoupled or self.num_timesteps <= getattr(self.model, "learning_starts", 0):
            return
        # Read now: the next rollout replaces the arrays before its callback runs.
        for index, extractor in enumerate(self.extractors):
            experience = extractor.experience()
            if experience is not None:
                self._recorded[index] = experience

    def _on_training_end(self) -> None:
        self._update_decoupled()
        make_updates_due(self.model)  # of the last rollout, while a schedule holds
        for extractor in self.extractors:
            extractor.steer()

    def get_state(self) -> dict[str, Any]:
        """Return the moments of the decoupled updates.

        Raises:
            RuntimeError: If updates are pending; the callback does them in `on_rollout_start`.
        """
        if self._recorded:
            raise RuntimeError(
                "Expected InfoNCECallback to come before the callback that saves the run: its "
                "decoupled updates are still to be done. Change their order in `learn`."
            )
        return {"optimizers": {i: each.state_dict() for i, (_, each) in self._optimizers.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on with the moments of another run; in training.

        Raises:
            RuntimeError: If they are not those of these extractors' parameters.
        """
        for index, moments in state["optimizers"].items():
            _, adam = self._optimizer(index)
            adam.load_state_dict(moments)

    def _update_decoupled(self) -> None:
        """Train on what the last rollout recorded: after the RL epochs, never before them."""
        recorded, self._recorded = self._recorded, {}
        on_policy = hasattr(self.model, "rollout_buffer")
        for index, experience in recorded.items():
            for _ in range(self.n_updates or (16 if on_policy else 1)):
                self._step(index, experience)

    def _step(self, index: int, experience: Experience) -> None:
        extractor = self.extractors[index]
        coef = extractor.infonce_coef
        auxiliary = extractor.drawn_gradients(experience, coef) if coef > 0 else None
        if auxiliary is None:
            return
        parameters, adam = self._optimizer(index)
        share = self._share_of_largest(coef)
        gradients = tuple(gradient / share for gradient in auxiliary.gradients)
        adam.step(parameters, auxiliary._replace(gradients=gradients), share * self.learning_rate)

    def _optimizer(self, index: int) -> tuple[list[nn.Parameter], OwnAdam]:
        """Return an extractor's trained parameters and their Adam, new if they are other ones."""
        parameters = trained(self.extractors[index].parameters())
        known = self._optimizers.get(index)
        if known is None or [*map(id, known[0])] != [*map(id, parameters)]:
            known = parameters, OwnAdam(parameters).to(self.model.device)
            self._optimizers[index] = known
        return known

    def _share_of_largest(self, coef: float) -> float:
        """Return a coefficient over the largest of the schedule at eleven points."""
        largest = max(_at_tenths(self.coef_schedule)) if self.coef_schedule is not None else 0.0
        return coef / largest if largest else 1.0


def _at_tenths(schedule: Schedule) -> list[float]:
    """Return a schedule where 0 to 10 tenths of training remain."""
    return [schedule(tenths / 10) for tenths in range(11)]


def _check_decoupled(decoupled: bool, settings: Mapping[str, Any]) -> None:
    """Raise a ValueError if settings of decoupled updates are given, and there are none."""
    given = [name for name, value in settings.items() if value is not None]
    if given and not decoupled:
        raise ValueError(
            f"Expected `{given[0]}` with decoupled=True, got it without: in RL's own updates the "
            "loss has RL's learning rate and clipping, and an isolated encoder has "
            "encoder_learning_rate and encoder_updates. Add decoupled=True, or leave it out."
        )


def _check_heeded(settings: Mapping[str, Any]) -> None:
    """Raise a ValueError if a setting of the loss is given that no decoupled update would heed."""
    names = ("max_grad_ratio", "pairs_from", "infonce_interval")
    max_grad_ratio, pairs_from, interval = (settings.get(name) for name in names)
    if max_grad_ratio is not None:
        raise ValueError(
            f"Expected no `max_grad_ratio` with decoupled updates, got {max_grad_ratio}: it bounds "
            "the loss's gradient by RL's, which they do not meet. Leave it out, or lower their "
            "learning rate."
        )
    if pairs_from == "minibatch":
        raise ValueError(
            f"Expected `pairs_from` 'buffer' with decoupled updates, got {pairs_from!r}: they come "
            "when RL's minibatches are gone. Leave it out."
        )
    if interval not in (None, 1):
        raise ValueError(
            f"Expected `infonce_interval` 1 with decoupled updates, got {interval}: they "
            "are not RL's, and n_updates of InfoNCECallback says how many come after a rollout. "
            "Leave it out."
        )


def check_not_isolated(extractor: InfoNCEExtractor) -> None:
    """Raise a ValueError if an extractor has updates of its own, beside decoupled ones."""
    if extractor.settings.isolated:
        raise ValueError(
            "Expected `decoupled` with an extractor that RL trains, got isolated=True, which has "
            "updates of its own already. Leave decoupled out, and set encoder_learning_rate and "
            "encoder_updates; or let RL train the encoder also, by isolated=False (--no-isolated)."
        )


def decoupled_callback(settings: Mapping[str, Any]) -> InfoNCECallback | None:
    """Return the callback of the decoupled mode, or None without it.

    Args:
        settings: Settings of `DecoupledSettings` and of `InfoNCESettings` by name, as far as they
            are given.

    Raises:
        TypeError: If a setting has the wrong type.
        ValueError: If there is a learning rate of updates that are not asked for, or it is not
            above 0, or there is a setting that they would not heed.
    """
    learning_rate = settings.get("decoupled_learning_rate")
    if settings.get("decoupled"):
        _check_heeded(settings)
        own: dict[str, Any] = {} if learning_rate is None else {"learning_rate": learning_rate}
        return InfoNCECallback(decoupled=True, **own)
    if learning_rate is not None:
        raise ValueError(
            "Expected `decoupled_learning_rate` with `decoupled`, got it without: in RL's own "
            "updates the loss has RL's learning rate. Add `decoupled`, or leave it out."
        )
    return None


def _schedule(coef: float | str | Schedule | None) -> FloatSchedule | None:
    if coef is None:
        return None
    if isinstance(coef, str):
        start = schedule_start("infonce_coef", coef)
        check_number("infonce_coef", start, at_least=0)
        return FloatSchedule(LinearSchedule(start, 0.0, 1.0))
    if callable(coef):
        return FloatSchedule(coef)
    check_number("infonce_coef", coef, at_least=0)
    return FloatSchedule(coef)
