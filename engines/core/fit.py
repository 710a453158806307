"""Whether a scheduler's settings and a runner fit together: said at start, not in some step. Pure."""

from engines.core.admission import SchedulerSettings
from engines.core.plan import Runner


def check_fit(runner: Runner, settings: SchedulerSettings, num_slots: int) -> None:
    """Raise ValueError if steps would be planned that the runner cannot do. `num_slots`: slots that plans name."""
    for name, wanted, offered in (
        ("max_seqs", settings.max_seqs, runner.num_slots),
        ("kv_tokens", settings.kv_tokens, runner.kv_tokens),
        ("max_step_tokens", settings.max_step_tokens, runner.max_step_tokens),
        ("max_resident", num_slots, runner.num_slots),
    ):
        if wanted > offered:
            raise ValueError(f"{name} is {wanted}, but the runner offers {offered}")
    num_samples = num_slots + settings.max_step_drafts
    if settings.max_drafts and num_samples > runner.max_samples:
        raise ValueError(f"drafts make up to {num_samples} logits a step, but the runner offers {runner.max_samples}")
    if settings.host.max_tokens and not runner.host_bytes_per_token:
        raise ValueError("KV shall be kept in host memory, but the runner offers no copies to there")
